#include <doctest/doctest.h>
#include <gradual/core/files/atomic_file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "support/files.h"

using namespace gradual;
using test::message_of;

TEST_CASE("an atomic file appears whole or not at all") {
  const test::TemporaryFolder folder;
  const std::string path = folder / "a";
  {
    AtomicFile file(path);
    file.write("half of");
    CHECK_FALSE(std::filesystem::exists(path));
    CHECK(folder.names().size() == 1);  // the temporary file
  }
  CHECK(folder.names().empty());
  write_file_atomically(path, "first");
  CHECK(read_file(path) == "first");
  {
    AtomicFile file(path);
    file.write("second");
    CHECK(read_file(path) == "first");
    file.commit();
    CHECK(read_file(path) == "second");
  }
  CHECK(folder.names() == std::vector<std::string>{"a"});
}

TEST_CASE("the next write into a folder removes the temporary files of processes that are gone, and no others") {
  const test::TemporaryFolder folder;
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    AtomicFile file(folder / "a");
    file.write("half of");
    raise(SIGKILL);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  REQUIRE(WIFSIGNALED(status));
  REQUIRE(folder.names().size() == 1);  // what the child left
  const std::string others = folder / "theirs.tmp";
  const std::string left = folder.names()[0];
  std::ofstream(others) << "not a temporary file of the library";

  const test::TemporaryFolder link;  // by another name, so that this process sees the folder for the first time twice
  std::filesystem::create_symlink(folder.path(), link / "to");
  AtomicFile running(folder / "b");  // has a lock
  CHECK_FALSE(std::filesystem::exists(folder / left));
  CHECK(folder.names().size() == 2);
  write_file_atomically(link / "to/c", "c");
  CHECK(folder.names().size() == 3);
  running.write("b");
  running.commit();
  CHECK(read_file(folder / "b") == "b");
  CHECK(std::filesystem::exists(others));
}

TEST_CASE("a write that fails leaves the old file and no temporary one") {
  const test::TemporaryFolder folder;
  const std::string path = folder / "a";
  write_file_atomically(path, "old");
  // The system refuses to let a file grow past this limit.
  rlimit before{};
  REQUIRE(getrlimit(RLIMIT_FSIZE, &before) == 0);
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit small = before;
  small.rlim_cur = 1000;
  REQUIRE(setrlimit(RLIMIT_FSIZE, &small) == 0);
  const std::string message = message_of([&] { write_file_atomically(path, std::string(5000, 'x')); });
  REQUIRE(setrlimit(RLIMIT_FSIZE, &before) == 0);
  std::signal(SIGXFSZ, old_handler);
  CHECK(test::contains(message, "cannot write \"" + path + "\": write: File too large"));
  CHECK(read_file(path) == "old");
  CHECK(folder.names() == std::vector<std::string>{"a"});
}

TEST_CASE("an atomic file keeps a link and the file's mode, and refuses what is no file") {
  const test::TemporaryFolder folder;
  write_file_atomically(folder / "real", "old");
  REQUIRE(chmod((folder / "real").c_str(), 0640) == 0);
  std::filesystem::create_symlink("real", folder / "link");
  write_file_atomically(folder / "link", "new");
  CHECK(std::filesystem::is_symlink(folder / "link"));
  CHECK(read_file(folder / "real") == "new");
  CHECK(std::filesystem::status(folder / "real").permissions() == std::filesystem::perms(0640));
  CHECK(test::contains(message_of([&] { write_file_atomically(folder.path(), "x"); }), "it is a folder"));
  CHECK(test::contains(message_of([&] { write_file_atomically("/dev/null", "x"); }), "it is not a regular file"));
  CHECK(test::contains(message_of([&] { write_file_atomically(folder / "none/a", "x"); }), "No such file"));
  // the longest name that a file system allows
  write_file_atomically(folder / std::string(255, 'n'), "x");
  CHECK(read_file(folder / std::string(255, 'n')) == "x");
}
