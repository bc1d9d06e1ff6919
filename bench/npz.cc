// .npz: a zip archive with a .npy file for each array, stored or deflated; minizip takes it apart.

#include <fmt/format.h>
#include <minizip/unzip.h>

#include <memory>
#include <type_traits>

#include "bench/tensors.h"

namespace tersor::bench {
namespace {

using Archive = std::unique_ptr<std::remove_pointer_t<unzFile>,
                                decltype([](unzFile archive) { unzClose(archive); })>;

[[noreturn]] void refuse_damaged(const std::string& where) {
  refuse_file(where, "is damaged, or packed otherwise than by numpy.savez");
}

Archive open(const std::filesystem::path& path) {
  read_file(path);  // says why a file cannot be read
  Archive archive(unzOpen64(path.c_str()));
  if (archive == nullptr) refuse_file(path.string(), "is no .npz file, cut short, or empty");
  return archive;
}

/// The uncompressed bytes of the current member; closing it checks them against their CRC.
std::string take_bytes(unzFile archive, const std::string& where) {
  if (unzOpenCurrentFile(archive) != UNZ_OK) refuse_damaged(where);
  std::string bytes;
  char piece[1 << 16];
  int read = 0;
  while ((read = unzReadCurrentFile(archive, piece, sizeof piece)) > 0)
    bytes.append(piece, static_cast<std::size_t>(read));
  if (unzCloseCurrentFile(archive) != UNZ_OK || read < 0) refuse_damaged(where);
  return bytes;
}

Tensor take_tensor(unzFile archive, const std::string& path) {
  char characters[4096] = {};
  if (unzGetCurrentFileInfo64(archive, nullptr, characters, sizeof characters - 1, nullptr, 0,
                              nullptr, 0) != UNZ_OK)
    refuse_damaged(path);
  std::string name = characters;
  const std::string where = fmt::format("{}, {}", path, name);
  if (!name.ends_with(".npy")) refuse_file(where, "is no .npy file");
  name.resize(name.size() - 4);
  return parse_npy(name, take_bytes(archive, where), where);
}

}  // namespace

std::vector<Tensor> read_npz(const std::filesystem::path& path) {
  const Archive archive = open(path);
  std::vector<Tensor> tensors;
  int next = unzGoToFirstFile(archive.get());
  for (; next == UNZ_OK; next = unzGoToNextFile(archive.get()))
    tensors.push_back(take_tensor(archive.get(), path.string()));
  if (next != UNZ_END_OF_LIST_OF_FILE) refuse_damaged(path.string());
  return tensors;
}

}  // namespace tersor::bench
