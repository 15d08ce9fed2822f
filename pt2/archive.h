// The container of a .pt2 file: a zip whose entries are stored, NAME/models/model.json, NAME/data/weights/weight_0 ..,
// all under one folder NAME. Nothing in it is trusted: names, sizes and checksums are checked, and entries that are
// pickles are never opened.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace gradual::pt2 {

class Archive {
 public:
  // Errors name the file: not a zip, no folder NAME, or this build has no libzip.
  explicit Archive(const std::string& path);
  // The same from memory, which must outlive the archive; `name` stands for the file in messages.
  Archive(std::string_view bytes, const std::string& name);
  ~Archive();
  Archive(const Archive&) = delete;
  Archive& operator=(const Archive&) = delete;

  // `entry` is a name below the folder: "models/model.json".
  bool contains(const std::string& entry) const;
  // Bytes of the entry when read; Error if there is no such entry.
  std::size_t size(const std::string& entry) const;
  // Reads the whole entry into `to`, of exactly size(entry) bytes. Error for a wrong checksum or a truncated file.
  void read(const std::string& entry, void* to, std::size_t bytes) const;
  std::string text(const std::string& entry) const;
  // The names below the folder, in the archive's order.
  const std::vector<std::string>& entries() const { return entries_; }
  const std::string& name() const { return name_; }

 private:
  struct Zip;
  void list();

  std::string name_;
  std::string folder_;  // with its slash
  std::vector<std::string> entries_;
  std::unique_ptr<Zip> zip_;
};

// True if the file begins as a zip does.
bool is_archive(const std::string& path);

}  // namespace gradual::pt2
