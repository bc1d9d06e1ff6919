// Defines the symbols of <tersor/abi.h>. Programs compiled for the same standard library refer to
// these symbols.
#include <tersor/abi.h>

#ifdef TERSOR_ABI_DEBUG
namespace tersor {

const char TERSOR_ABI_DEBUG = 0, TERSOR_ABI_STRING = 0;

}  // namespace tersor
#endif
