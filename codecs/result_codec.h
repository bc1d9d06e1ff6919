// A codec whose `reduce` writes frames of another codec: a first codec from the senders to the
// owners, and the codec of the option "result" back to all ranks.
#pragma once

#include <tersor/codec.h>

#include <memory>
#include <string_view>

namespace tersor::encoding {

/// The option of any codec whose frames an owner can add. Stands last in a spec, because the value
/// is a spec, too: hadamard:bits=1,result=hadamard:bits=2+ef
inline constexpr std::string_view kResultOption = "result";

/// Returns the codec of a spec with the option "result". Throws InvalidArgumentError if a rank
/// cannot add frames of one of both codecs.
std::shared_ptr<const Codec> make_result_codec(const CodecSpec& spec);

}  // namespace tersor::encoding
