#include "archive.h"

#include <algorithm>
#include <fstream>

#include "../core/support/throwf.h"

#ifdef GRADUAL_HAVE_ZIP
#include <zip.h>
#endif

namespace gradual::pt2 {

bool is_archive(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  char start[4] = {};
  file.read(start, sizeof start);
  return file && std::string_view(start, sizeof start) == std::string_view("PK\3\4", 4);
}

#ifdef GRADUAL_HAVE_ZIP

namespace {

constexpr std::size_t kMostEntries = 1'000'000;
// A JSON text may be packed; weights are stored. No entry unpacks to more than this many times its bytes.
constexpr std::uint64_t kMostPacked = 1000;

struct CloseFile {
  void operator()(zip_file_t* file) const { zip_fclose(file); }
};

std::string reason(int code) {
  zip_error_t error;
  zip_error_init_with_code(&error, code);
  std::string text = zip_error_strerror(&error);
  zip_error_fini(&error);
  return text;
}

}  // namespace

struct Archive::Zip {
  explicit Zip(zip_t* opened) : archive(opened) {}
  ~Zip() { zip_discard(archive); }
  Zip(const Zip&) = delete;
  Zip& operator=(const Zip&) = delete;

  zip_t* archive;
};

Archive::Archive(const std::string& path) : name_(path) {
  int code = 0;
  zip_t* const opened = zip_open(path.c_str(), ZIP_RDONLY | ZIP_CHECKCONS, &code);
  if (!opened) throwf("pt2 \"{}\": {}; a file of torch.export.save is a zip", path, reason(code));
  zip_ = std::make_unique<Zip>(opened);
  list();
}

Archive::Archive(std::string_view bytes, const std::string& name) : name_(name) {
  zip_error_t error;
  zip_error_init(&error);
  zip_source_t* const source = zip_source_buffer_create(bytes.data(), bytes.size(), 0, &error);
  zip_t* const opened = source ? zip_open_from_source(source, ZIP_RDONLY | ZIP_CHECKCONS, &error) : nullptr;
  const std::string why = zip_error_strerror(&error);
  zip_error_fini(&error);
  if (!opened && source) zip_source_free(source);
  if (!opened) throwf("pt2 \"{}\": {}; a file of torch.export.save is a zip", name, why);
  zip_ = std::make_unique<Zip>(opened);
  list();
}

void Archive::list() {
  const zip_int64_t count = zip_get_num_entries(zip_->archive, 0);
  if (count < 1 || static_cast<std::size_t>(count) > kMostEntries)
    throwf("pt2 \"{}\": a zip of {} entries; 1 to {} are allowed", name_, count, kMostEntries);
  for (zip_int64_t i = 0; i < count; ++i) {
    const char* const full = zip_get_name(zip_->archive, static_cast<zip_uint64_t>(i), 0);
    if (!full) throwf("pt2 \"{}\": entry {} has no name", name_, i);
    const std::string entry = full;
    if (folder_.empty()) folder_ = entry.substr(0, entry.find('/') + 1);
    if (folder_.empty() || !entry.starts_with(folder_)) {
      entries_.push_back(entry);
      folder_.clear();
      break;
    }
    entries_.push_back(entry.substr(folder_.size()));
  }
}

bool Archive::contains(const std::string& entry) const {
  return zip_name_locate(zip_->archive, (folder_ + entry).c_str(), 0) >= 0;
}

std::size_t Archive::size(const std::string& entry) const {
  zip_stat_t stat;
  zip_stat_init(&stat);
  if (zip_stat(zip_->archive, (folder_ + entry).c_str(), 0, &stat) != 0 || !(stat.valid & ZIP_STAT_SIZE))
    throwf("pt2 \"{}\": there is no entry {}{}", name_, folder_, entry);
  const bool known = (stat.valid & ZIP_STAT_COMP_SIZE) != 0;
  if (known && stat.size / kMostPacked > stat.comp_size)
    throwf("pt2 \"{}\": {} unpacks from {} to {} bytes, more than {} times", name_, entry, stat.comp_size, stat.size,
           kMostPacked);
  return static_cast<std::size_t>(stat.size);
}

void Archive::read(const std::string& entry, void* to, std::size_t bytes) const {
  if (size(entry) != bytes) throwf("pt2 \"{}\": {} has {} bytes, not {}", name_, entry, size(entry), bytes);
  const std::unique_ptr<zip_file_t, CloseFile> file(zip_fopen(zip_->archive, (folder_ + entry).c_str(), 0));
  if (!file) throwf("pt2 \"{}\": {}: {}", name_, entry, zip_strerror(zip_->archive));
  std::size_t done = 0;
  while (done < bytes) {
    const zip_int64_t got = zip_fread(file.get(), static_cast<char*>(to) + done, bytes - done);
    if (got <= 0) throwf("pt2 \"{}\": {}: {} of {} bytes can be read", name_, entry, done, bytes);
    done += static_cast<std::size_t>(got);
  }
  char past = 0;
  if (zip_fread(file.get(), &past, 1) != 0)  // the end of an entry is where libzip compares its checksum
    throwf("pt2 \"{}\": {}: {}", name_, entry, zip_file_strerror(file.get()));
}

#else

struct Archive::Zip {};

static constexpr const char* kAbsent =
    "pt2 \"{}\": this build of Gradual has no libzip and reads no .pt2 files; install it (Debian: libzip-dev) and "
    "configure again";
Archive::Archive(const std::string& path) : name_(path) { throwf(kAbsent, path); }
Archive::Archive(std::string_view, const std::string& name) : name_(name) { throwf(kAbsent, name); }
void Archive::list() {}
bool Archive::contains(const std::string&) const { return false; }
std::size_t Archive::size(const std::string&) const { return 0; }
void Archive::read(const std::string&, void*, std::size_t) const {}

#endif

Archive::~Archive() = default;

std::string Archive::text(const std::string& entry) const {
  std::string out(size(entry), '\0');
  read(entry, out.data(), out.size());
  return out;
}

}  // namespace gradual::pt2
