// Defines the symbols of <tersor/abi.h>, referenced by programs compiled for the same standard
// library.
#include <tersor/abi.h>

#ifdef TERSOR_ABI_DEBUG
namespace tersor {

const char TERSOR_ABI_DEBUG = 0, TERSOR_ABI_STRING = 0;

}  // namespace tersor
#endif
