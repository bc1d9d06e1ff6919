#!/usr/bin/env python3
"""Installs a build into a folder of its own and builds user programs against the copy: the project
beside this file by find_package, the same source and every program of the README by pkg-config.

usage: check_package.py BUILD COMPILER    CXXFLAGS is handed on
"""
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

CONSUMER = pathlib.Path(__file__).resolve().parent
REPOSITORY = CONSUMER.parent.parent


def run(*command, **options):
    print("+", shlex.join(map(str, command)), flush=True)
    subprocess.run(list(map(str, command)), check=True, **options)


def by_find_package(prefix, work, compiler):
    run("cmake", "-S", CONSUMER, "-B", work / "cmake", f"-DCMAKE_PREFIX_PATH={prefix}",
        f"-DCMAKE_CXX_COMPILER={compiler}")
    run("cmake", "--build", work / "cmake")
    run(work / "cmake" / "consumer")


def by_pkg_config(prefix, source, compiler):
    folder = next(prefix.rglob("tersor.pc")).parent
    flags = subprocess.run(["pkg-config", "--cflags", "--libs", "tersor"], check=True, text=True,
                           stdout=subprocess.PIPE, env={**os.environ, "PKG_CONFIG_PATH": str(folder)})
    program = source.with_suffix(".program")
    run(compiler, "-std=c++20", *shlex.split(os.environ.get("CXXFLAGS", "")), source, "-o", program,
        *shlex.split(flags.stdout))
    run(program, env={**os.environ, "LD_LIBRARY_PATH": str(folder.parent)})  # where it is shared


def readme_programs():
    """The text of every C++ block of the README that is a whole program."""
    readme = REPOSITORY / "README.md"
    text = readme.read_text() if readme.exists() else ""
    blocks = re.findall(r"^```cpp\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [block for block in blocks if "int main(" in block]


def main():
    build, compiler = pathlib.Path(sys.argv[1]).resolve(), sys.argv[2]
    work = build / "package"
    shutil.rmtree(work, ignore_errors=True)
    prefix = work / "prefix"
    run("cmake", "--install", build, "--prefix", prefix, stdout=subprocess.DEVNULL)
    by_find_package(prefix, work, compiler)
    programs = [(CONSUMER / "main.cc").read_text()] + readme_programs()
    for number, text in enumerate(programs):
        source = work / f"program_{number}.cc"
        source.write_text(text)
        by_pkg_config(prefix, source, compiler)
    print(f"package: {1 + len(programs)} programs built against {prefix} and run")


if __name__ == "__main__":
    main()
