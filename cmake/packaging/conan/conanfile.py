"""The recipe of the source tree that it lies in: conan create cmake/packaging/conan --build=missing"""
import os

from conan import ConanFile
from conan.tools.cmake import CMake, CMakeDeps, CMakeToolchain, cmake_layout
from conan.tools.files import copy


class Gradual(ConanFile):
    name = "gradual"
    version = "0.2.0"
    license = "Apache-2.0"
    description = "Autograd deep-learning framework for precision experiments"
    package_type = "static-library"
    settings = "os", "arch", "compiler", "build_type"
    requires = "eigen/3.4.0", "fmt/10.2.1", "nlohmann_json/3.11.3", "zlib/1.3.1"

    def export_sources(self):
        top = os.path.join(self.recipe_folder, "..", "..", "..")
        for folder in ("core", "autograd", "nn", "optim", "amp", "cuda", "inspect", "dist", "data", "lab", "docs", "cmake"):
            copy(self, folder + "/*", top, self.export_sources_folder)
        for file in ("CMakeLists.txt", "LICENSE", "README.md", "CHANGELOG.md", "*.cpp", "*.h"):
            copy(self, file, top, self.export_sources_folder, excludes="*/*")

    def layout(self):
        cmake_layout(self)

    def generate(self):
        toolchain = CMakeToolchain(self)
        toolchain.cache_variables["GRADUAL_INSTALL"] = True
        for name in ("NATIVE", "CUDA", "ONEDNN", "MPI", "OPENMP", "CCACHE", "BUILD_TESTS", "BUILD_EXAMPLES", "BUILD_LAB"):
            toolchain.cache_variables["GRADUAL_" + name] = "OFF"
        toolchain.generate()
        CMakeDeps(self).generate()

    def build(self):
        cmake = CMake(self)
        cmake.configure()
        cmake.build()

    def package(self):
        CMake(self).install()

    def package_info(self):
        self.cpp_info.libs = ["gradual"]
        self.cpp_info.set_property("cmake_file_name", "gradual")
        self.cpp_info.set_property("cmake_target_name", "gradual::gradual")
        self.cpp_info.set_property("pkg_config_name", "gradual")
        if self.settings.os == "Linux":
            self.cpp_info.system_libs = ["pthread", "m"]
