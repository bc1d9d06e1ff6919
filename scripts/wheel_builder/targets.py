"""Builds wheels: a Target with Zig's compiler, a GccTarget with g++, a CudaTarget with nvcc."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import cuda_package
import tomllib
from sources import (
    GLIBC,
    OUT,
    ROOT,
    SOURCES,
    TOOLS,
    download,
    only_folder,
    output_of,
    run,
    zig_program,
)

ARCHITECTURES = "80-real;90-real;100-real;120"  # 120 also as PTX, for later GPUs
OLD_GLIBC = Path(__file__).resolve().parent / "old_glibc.h"
CUDA_LICENSE = """This package contains the CUDA runtime library (cudart), (c) NVIDIA Corporation.
The CUDA Toolkit End User License Agreement applies: https://docs.nvidia.com/cuda/eula/
"""


class Target:
    """A processor architecture: compilers, static libraries, wheels."""

    def __init__(self, arch: str, tools: Path, name: str | None = None) -> None:
        self.arch = arch
        self.tools = tools
        self.platform = f"manylinux_{GLIBC.replace('.', '_')}_{arch}"
        self._folder = OUT / (name or arch)
        self._prefix = OUT / arch / "prefix"
        self._environment = os.environ | {"PATH": f"{tools}:{os.environ['PATH']}"}
        self._toolchain = self._write_toolchain()

    def _write_toolchain(self) -> Path:
        """Writes the compiler wrappers and CMake's toolchain file. Returns this file."""
        programs = self._folder / "bin"
        programs.mkdir(parents=True, exist_ok=True)
        triple = f"{self.arch}-linux-gnu.{GLIBC}"
        for name, arguments in {
            "cc": f"cc -target {triple}",
            "c++": f"c++ -target {triple}",
            "ar": "ar",
            "ranlib": "ranlib",
        }.items():
            program = programs / name
            program.write_text(f'#!/bin/sh\nexec "{zig_program(self.tools)}" {arguments} "$@"\n')
            program.chmod(0o755)
        memory = self._compile("glibc_memory.c", "-fno-builtin")
        file = self._folder / "toolchain.cmake"
        file.write_text(
            f"""set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR {self.arch})
set(CMAKE_C_COMPILER {programs}/cc)
set(CMAKE_CXX_COMPILER {programs}/c++)
set(CMAKE_AR {programs}/ar)
set(CMAKE_RANLIB {programs}/ranlib)
set(CMAKE_CXX_FLAGS_INIT "-include stdio.h") # nanobind 3.1 uses stderr without the header
set(CMAKE_MODULE_LINKER_FLAGS_INIT {memory})
set(CMAKE_FIND_ROOT_PATH {self._prefix})
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE BOTH)
"""
        )
        return file

    def _compile(self, name: str, *options: str) -> Path:
        """Compiles a C source of this folder for the old glibc. Returns the object."""
        source, made = Path(__file__).resolve().parent / name, self._folder / f"{name}.o"
        zig = (zig_program(self.tools), "cc", "-target", f"{self.arch}-linux-gnu.{GLIBC}")
        run(*zig, "-O2", "-fPIC", *options, "-c", source, "-o", made)
        return made

    def build_libraries(self) -> None:
        """Installs Highway, libsodium, Asio's headers and their licences into the prefix."""
        mark = self._prefix / "complete"
        wanted = "\n".join([GLIBC, *TOOLS, *(source.sha256 for source in SOURCES.values())])
        if mark.exists() and mark.read_text() == wanted:
            return
        shutil.rmtree(self._prefix, ignore_errors=True)
        licenses = self._prefix / "licenses"
        licenses.mkdir(parents=True)
        asio = download("asio")
        shutil.copytree(asio / "usr/include", self._prefix / "include")
        shutil.copy(asio / "usr/share/doc/libasio-dev/copyright", licenses / "LICENSE.asio")
        shutil.copy(self._build_highway() / "LICENSE", licenses / "LICENSE.highway")
        shutil.copy(self._build_libsodium() / "LICENSE", licenses / "LICENSE.libsodium")
        packages = next((self.tools.parent / "lib").glob("python3*/site-packages"))
        for name, pattern in {
            "nanobind": "nanobind-*.dist-info/licenses/LICENSE",
            "libc++": "ziglang/lib/libcxx/LICENSE.TXT",
        }.items():
            (found,) = packages.glob(pattern)
            shutil.copy(found, licenses / f"LICENSE.{name}")
        header = packages / "nanobind/ext/robin_map/include/tsl/robin_map.h"
        (licenses / "LICENSE.robin_map").write_text(header.read_text().partition("*/")[0])
        mark.write_text(wanted)

    def _build_highway(self) -> Path:
        source = only_folder(download("highway"))
        build = self._folder / "highway"
        self._run(
            *("cmake", "-G", "Ninja", "-S", source, "-B", build, "--fresh"),
            f"-DCMAKE_TOOLCHAIN_FILE={self._toolchain}",
            f"-DCMAKE_INSTALL_PREFIX={self._prefix}",
            *("-DCMAKE_BUILD_TYPE=Release", "-DCMAKE_POSITION_INDEPENDENT_CODE=ON"),
            *("-DCMAKE_INSTALL_LIBDIR=lib", "-DBUILD_SHARED_LIBS=OFF", "-DBUILD_TESTING=OFF"),
            *("-DHWY_ENABLE_EXAMPLES=OFF", "-DHWY_ENABLE_CONTRIB=OFF"),
        )
        self._run("cmake", "--build", build, "--target", "install")
        config = self._prefix / "lib/cmake/hwy/hwy-config.cmake"  # Highway 1.0.3 has none
        config.parent.mkdir(parents=True)
        config.write_text(
            f"""add_library(hwy::hwy STATIC IMPORTED)
set_target_properties(hwy::hwy PROPERTIES IMPORTED_LOCATION {self._prefix}/lib/libhwy.a
                      INTERFACE_INCLUDE_DIRECTORIES {self._prefix}/include)
"""
        )
        return source

    def _build_libsodium(self) -> Path:
        source = only_folder(download("libsodium")) / "src/libsodium"
        build = self._folder / "libsodium"
        shutil.rmtree(build, ignore_errors=True)
        build.mkdir(parents=True)
        programs = self._folder / "bin"
        self._run(
            *(source / "configure", f"--host={self.arch}-linux-gnu", f"--prefix={self._prefix}"),
            *("--disable-shared", "--enable-static", "--with-pic", "--disable-dependency-tracking"),
            *(f"CC={programs}/cc", f"AR={programs}/ar", f"RANLIB={programs}/ranlib", "CFLAGS=-O2"),
            cwd=build,
        )
        self._run("make", "--silent", f"-j{os.cpu_count()}", "install", cwd=build)
        return source

    def build_wheel(self, python: str, stub: Path | None) -> Path:
        """Returns the wheel for ``python``, repaired by auditwheel.

        ``stub``: the stub of the extension module, if this machine cannot run the module.
        """
        environment = self._build_environment(python)
        raw = self._folder / "raw"
        shutil.rmtree(raw, ignore_errors=True)
        build = self._folder / "build"  # all Pythons share the library's objects
        (build / "CMakeCache.txt").unlink(missing_ok=True)
        defines = self._defines() | ({"TERSOR_STUB": stub} if stub else {})
        self._run(
            *(environment / "bin/python", "-m", "build", "--wheel", "--no-isolation"),
            *("--outdir", raw),
            f"--config-setting=build-dir={build}",
            *(f"--config-setting=cmake.define.{name}={value}" for name, value in defines.items()),
            ROOT,
            environment=self._cross_environment(python) if stub else {},
        )
        # auditwheel knows the platforms of its own machine.
        program = f"import platform; platform.machine = lambda: {self.arch!r}"
        program += "; import auditwheel.main as a, sys; sys.exit(a.main())"
        self._run(
            *(self.tools / "python", "-c", program, "repair", "--plat", self.platform),
            *("--only-plat", "--wheel-dir", OUT, self._finish(next(raw.glob("*.whl")))),
        )
        return max(OUT.glob(f"*{self.arch}.whl"), key=lambda path: path.stat().st_mtime)

    def _build_environment(self, python: str) -> Path:
        version = output_of(python, "-c", "import sys; print(sys.version.split()[0])")
        environment = OUT / f"env-{version}"
        if not (environment / "complete").exists():
            run(python, "-m", "venv", "--clear", environment)
            with (ROOT / "pyproject.toml").open("rb") as file:
                requires = tomllib.load(file)["build-system"]["requires"]
            pip = (environment / "bin/python", "-m", "pip", "install", "--quiet")
            tools = [tool for tool in TOOLS if tool.startswith(("build", "nanobind"))]
            run(*pip, *tools, *requires)
            (environment / "complete").touch()
        return environment

    def _cross_environment(self, python: str) -> dict[str, str]:
        """The variables that scikit-build-core reads instead of this machine's names."""
        program = "import sysconfig as s; print(s.get_config_var('EXT_SUFFIX'))"
        suffix = output_of(python, "-c", program)
        return {
            "_PYTHON_HOST_PLATFORM": f"linux-{self.arch}",
            "SETUPTOOLS_EXT_SUFFIX": suffix.replace(os.uname().machine, self.arch),
        }

    def _defines(self) -> dict[str, str | Path]:
        return {
            "CMAKE_TOOLCHAIN_FILE": self._toolchain,
            "hwy_DIR": self._prefix / "lib/cmake/hwy",
            "TERSOR_ASIO_INCLUDE": self._prefix / "include",
            "TERSOR_SODIUM_INCLUDE": self._prefix / "include",
            "TERSOR_SODIUM": self._prefix / "lib/libsodium.a",
            "TERSOR_LICENSES": self._prefix / "licenses",
            "TERSOR_CUDA": "OFF",
            "TERSOR_MPI": "OFF",
            "TERSOR_TCP": "ON",
            "TERSOR_UNITY_BUILD": "ON",
        }

    def _finish(self, wheel: Path) -> Path:
        return wheel

    def _run(
        self, *command: str | Path, cwd: Path = ROOT, environment: dict[str, str] | None = None
    ) -> None:
        run(*command, cwd=cwd, environment=self._environment | (environment or {}))


class GccTarget(Target):
    """x86-64 with g++, whose code is up to a third faster than Zig's in some loops of codecs.

    Zig links against glibc 2.28, with g++'s libstdc++ as a static library.
    """

    programs: tuple[str, ...] = ("g++",)

    def __init__(self, tools: Path, name: str = "x86_64-gcc") -> None:
        super().__init__("x86_64", tools, name)

    def _write_toolchain(self) -> Path:
        self._folder.mkdir(parents=True, exist_ok=True)
        if missing := [name for name in self.programs if not shutil.which(name)]:
            sys.exit(f"wheels: {' and '.join(missing)} missing: see scripts/wheels --help")
        objects = [self._compile("old_glibc.c"), self._compile("glibc_memory.c", "-fno-builtin")]
        zig_cc = f"{zig_program(self.tools)} cc -target x86_64-linux-gnu.{GLIBC}"
        libstdcxx = output_of("g++", "-print-file-name=libstdc++.a")
        static = f"{objects[0]} {objects[1]} {libstdcxx} -lunwind"
        file = self._folder / "toolchain.cmake"
        file.write_text(
            f"""set(CMAKE_CXX_COMPILER {shutil.which("g++")})
set(CMAKE_CXX_FLAGS_INIT "-include {OLD_GLIBC}")
set(CMAKE_CXX_CREATE_SHARED_MODULE
    "{zig_cc} -shared -s <LINK_FLAGS> -o <TARGET> <OBJECTS> <LINK_LIBRARIES> {static}")
set(CMAKE_PREFIX_PATH {self._prefix})
{self._cuda_settings()}"""
        )
        return file

    def _cuda_settings(self) -> str:
        return ""

    def _copy_licenses(self) -> Path:
        folder = self._folder / "licenses"
        shutil.copytree(self._prefix / "licenses", folder, dirs_exist_ok=True)
        (folder / "LICENSE.libc++").unlink()
        texts = sorted(Path("/usr/share/doc").glob("libstdc++-*-dev/copyright"))
        if not texts:
            sys.exit("wheels: the licence of libstdc++ is not in /usr/share/doc/libstdc++-*-dev")
        shutil.copy(texts[-1], folder / "LICENSE.libstdc++")
        return folder

    def _defines(self) -> dict[str, str | Path]:
        return super()._defines() | {
            "TERSOR_LICENSES": self._copy_licenses(),
            "TERSOR_LINKER_EXCLUDES_LIBRARIES": "OFF",  # only g++'s linker excludes libraries
        }


class CudaTarget(GccTarget):
    """The package tersor-cuda13. nvcc accepts g++, but neither Zig's clang nor libc++."""

    programs = ("g++", "nvcc")

    def __init__(self, tools: Path, architectures: str) -> None:
        self._architectures = architectures
        super().__init__(tools, "x86_64-cuda")

    def _cuda_settings(self) -> str:
        return f"""set(CMAKE_CUDA_COMPILER {shutil.which("nvcc")})
set(CMAKE_CUDA_HOST_COMPILER {shutil.which("g++")})
set(CMAKE_CUDA_FLAGS_INIT "-include {OLD_GLIBC} --compress-mode=size --threads=2")
"""

    def _copy_licenses(self) -> Path:
        folder = super()._copy_licenses()
        (folder / "LICENSE.cudart").write_text(CUDA_LICENSE)
        return folder

    def _defines(self) -> dict[str, str | Path]:
        return super()._defines() | {
            "TERSOR_CUDA": "ON",
            "TERSOR_NCCL": "ON",
            "CMAKE_CUDA_ARCHITECTURES": self._architectures,
        }

    def _finish(self, wheel: Path) -> Path:
        return cuda_package.repack(wheel)
