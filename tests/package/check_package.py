#!/usr/bin/env python3
"""Installs a build into a temporary folder and builds user programs against the copy.

The project in the folder `consumer` uses find_package. That source and every program of the
README and of the pages in docs/ use pkg-config. A program compiled for another ABI must not link.
Options select other programs instead:

--mpi   The two trainers of the folder `mpi`, which must reach the same losses, and `examples/cpp`.

--tcp   The processes of the folder `tcp`. They must sum, with system libraries only.

--nccl  The NCCL program of docs/how-to/gpu.md. Without a GPU, the program must report what is
        missing.

usage: check_package.py BUILD COMPILER [--mpi|--tcp|--nccl]    CXXFLAGS is passed on
    BUILD may also be the prefix of an installed copy.

Exit status 77: --mpi without MPI, or --tcp or --nccl with a build without this transport.
"""
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

FOLDER = pathlib.Path(__file__).resolve().parent
REPOSITORY = FOLDER.parent.parent
SKIPPED = 77
RANKS = 2
# Maximum relative difference of the losses. int8's error is noise averaged out by training.
LOSS_TOLERANCE = 0.005


def run(*command, **options):
    print("+", shlex.join(map(str, command)), flush=True)
    subprocess.run(list(map(str, command)), check=True, **options)


def output_of(*command, **options):
    print("+", shlex.join(map(str, command)), flush=True)
    return subprocess.run(list(map(str, command)), check=True, text=True, stdout=subprocess.PIPE,
                          **options).stdout


def install(build, work):
    """Installs the build and returns the prefix. Returns the path of an installed copy."""
    shutil.rmtree(work, ignore_errors=True)
    if not (build / "CMakeCache.txt").exists():
        work.mkdir()
        return build
    run("cmake", "--install", build, "--prefix", work / "prefix", stdout=subprocess.DEVNULL)
    return work / "prefix"


def build_project(source, prefix, work, compiler):
    """Builds a find_package project and returns the folder of its programs."""
    run("cmake", "-S", source, "-B", work / "cmake", f"-DCMAKE_PREFIX_PATH={prefix}",
        f"-DCMAKE_CXX_COMPILER={compiler}", "-DCMAKE_BUILD_TYPE=Release")
    run("cmake", "--build", work / "cmake")
    return work / "cmake"


def pkg_config_command(prefix, source, program, compiler, package="tersor"):
    """The compiler command for a program with the flags of pkg-config."""
    folder = next(prefix.rglob("tersor.pc")).parent
    flags = output_of("pkg-config", "--cflags", "--libs", package,
                      env={**os.environ, "PKG_CONFIG_PATH": str(folder)})
    options = [*shlex.split(os.environ.get("CXXFLAGS", "")), f"-I{source.parent}"]
    return [compiler, "-std=c++20", *options, source, "-o", program, *shlex.split(flags)]


def by_pkg_config(prefix, source, work, compiler, package="tersor"):
    """Builds a program with pkg-config. Only a shared library needs LD_LIBRARY_PATH."""
    program = work / (source.stem + ".program")
    run(*pkg_config_command(prefix, source, program, compiler, package))
    os.environ["LD_LIBRARY_PATH"] = str(next(prefix.rglob("tersor.pc")).parent.parent)
    return program


def check_refused_abis(prefix, source, work, compiler):
    """A program with another standard library ABI must not link; the symbol names the ABI."""
    for macro, symbol in (
        ("-D_GLIBCXX_DEBUG", "compile_libtersor_with_GLIBCXX_DEBUG_too"),
        ("-D_GLIBCXX_USE_CXX11_ABI=0", "compile_libtersor_with_GLIBCXX_USE_CXX11_ABI_0_too"),
    ):  # fmt: skip
        command = pkg_config_command(prefix, source, work / "refused", compiler)
        done = subprocess.run([*map(str, command), macro], text=True, capture_output=True)
        if done.returncode == 0 or symbol not in done.stderr:
            sys.exit(f"package: a program with {macro} links, or without this reason:\n{done.stderr}")


def programs_in(page):
    """Returns every C++ block of a page with a whole program."""
    file = REPOSITORY / page
    text = file.read_text() if file.exists() else ""
    blocks = re.findall(r"^```cpp\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [block for block in blocks if "int main(" in block]


def needs_nccl(program):
    return "<tersor/nccl.h>" in program


def check_programs(build, compiler):
    work = build / "package"
    prefix = install(build, work)
    run(build_project(FOLDER / "consumer", prefix, work, compiler) / "consumer")
    programs = [(FOLDER / "consumer" / "main.cc").read_text()]
    for page in [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").rglob("*.md"))]:
        programs += [text for text in programs_in(page) if not needs_nccl(text)]
    for number, text in enumerate(programs):
        source = work / f"program_{number}.cc"
        source.write_text(text)
        run(by_pkg_config(prefix, source, work, compiler))
    check_refused_abis(prefix, work / "program_0.cc", work, compiler)
    print(f"package: {1 + len(programs)} programs built against {prefix} and run")


def losses(trainer):
    """The losses before and after training, as printed by rank 0 of the trainer."""
    printed = output_of(REPOSITORY / "scripts" / "mpirun", RANKS, trainer)
    print(printed, end="")
    found = re.fullmatch(rf"{RANKS} ranks: loss (\S+), after \d+ steps (\S+)\n", printed)
    return float(found[1]), float(found[2])


def check_trainers(build, compiler):
    work = build / "package-mpi"
    prefix = install(build, work)
    if not any(prefix.rglob("tersor-mpi-targets.cmake")) or not shutil.which("mpirun"):
        print("package: skipped: this build has no tersor::mpi, or this machine no mpirun")
        return SKIPPED
    programs = build_project(FOLDER / "mpi", prefix, work, compiler)
    first, plain = losses(programs / "trainer")
    by_name = by_pkg_config(prefix, FOLDER / "mpi" / "trainer_tersor.cc", work, compiler, "tersor-mpi")
    same_first, with_tersor = losses(programs / "trainer_tersor")
    if losses(by_name) != (same_first, with_tersor):
        sys.exit("package: the trainer that pkg-config built learns something else")
    if first != same_first or not plain < 0.1 * first:
        sys.exit("package: the trainers do not start alike, or do not learn")
    if not abs(with_tersor - plain) <= LOSS_TOLERANCE * plain:
        sys.exit(f"package: loss {with_tersor} with Tersor, {plain} without")
    print("package: both trainers learnt the same")
    check_example(prefix, work, compiler)
    return 0


def check_example(prefix, work, compiler):
    """The C++ example must learn, and send a quarter of the bytes."""
    program = build_project(REPOSITORY / "examples" / "cpp", prefix, work / "example", compiler)
    printed = output_of(REPOSITORY / "scripts" / "mpirun", RANKS, program / "trainer")
    print(printed, end="")
    first, last = map(float, re.findall(r"loss (\S+)", printed))
    sent, instead = map(int, re.findall(r"(\d+) KiB", printed))
    if not (last < 0.01 * first and 0 < sent < 0.3 * instead):
        sys.exit("package: examples/cpp does not learn, or sends too much")


def check_tcp(build, compiler):
    work = build / "package-tcp"
    prefix = install(build, work)
    if not any(prefix.rglob("tersor-tcp-targets.cmake")):
        print("package: skipped: this build has no tersor::tcp")
        return SKIPPED
    program = build_project(FOLDER / "tcp", prefix, work, compiler) / "sum"
    libraries = output_of("ldd", program)
    if any(prefix.rglob("libtersor_tcp.a")) and "sodium" in libraries:
        sys.exit("package: a program that links tersor::tcp needs libsodium at run time:\n" + libraries)
    other = by_pkg_config(prefix, FOLDER / "tcp" / "sum.cc", work, compiler, "tersor-tcp")
    ranks = [subprocess.Popen([one, work / "meeting", str(rank), str(RANKS)], text=True,
                              stdout=subprocess.PIPE) for rank, one in enumerate((program, other))]
    printed = [rank.communicate(timeout=60)[0] for rank in ranks]
    if printed != [f"rank {rank}: {RANKS}.000\n" for rank in range(RANKS)]:
        sys.exit(f"package: the ranks say {printed}")
    print(f"package: {RANKS} processes summed over TCP")
    return 0


def reducing_lines():
    """The lines of docs/how-to/gpu.md that reduce gradients over NCCL."""
    text = (REPOSITORY / "docs" / "how-to" / "gpu.md").read_text()
    [lines] = re.findall(r"^```cpp\n(const auto transport.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return lines


def check_nccl(build, compiler):
    work = build / "package-nccl"
    prefix = install(build, work)
    if not any(prefix.rglob("tersor-nccl-targets.cmake")):
        print("package: skipped: this build has no tersor::nccl")
        return SKIPPED
    shutil.copytree(FOLDER / "nccl", work / "project")
    [program] = filter(needs_nccl, programs_in("docs/how-to/gpu.md"))
    (work / "project" / "program.cc").write_text(program)
    trainer = (FOLDER / "nccl" / "trainer.cc").read_text()
    trainer = trainer.replace("  // The lines of the page stand here.\n", reducing_lines())
    (work / "project" / "trainer.cc").write_text(trainer)
    by_pkg_config(prefix, work / "project" / "program.cc", work, compiler, "tersor-nccl")
    built = build_project(work / "project", prefix, work, compiler) / "program"
    done = subprocess.run([built, "0", "1", work / "nccl-id"], text=True, capture_output=True)
    print(done.stdout, done.stderr, sep="", end="")
    if done.returncode not in (0, 1) or (done.returncode == 1 and not done.stderr.strip()):
        sys.exit(f"package: the program of docs/how-to/gpu.md ended with status {done.returncode}")
    print("package: the program of docs/how-to/gpu.md was built and run")
    return 0


def main():
    build, compiler = pathlib.Path(sys.argv[1]).resolve(), sys.argv[2]
    if sys.argv[3:] == ["--mpi"]:
        sys.exit(check_trainers(build, compiler))
    if sys.argv[3:] == ["--tcp"]:
        sys.exit(check_tcp(build, compiler))
    if sys.argv[3:] == ["--nccl"]:
        sys.exit(check_nccl(build, compiler))
    check_programs(build, compiler)


if __name__ == "__main__":
    main()
