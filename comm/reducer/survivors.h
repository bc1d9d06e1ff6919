// Which ranks are left after a fault: agreed on by those who are, over a lifeline, without a
// leader. Each tells all others whom it hears; sets that differ are intersected, and who is gone or
// silent is left out, until all of a set have told that very set. Who goes on with a set has the
// word of each of its members, who can agree on no other but a part of it.
#pragma once

#include <tersor/align.h>
#include <tersor/transport.h>

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace tersor {

class Survivors {
 public:
  /// A collective call: makes a lifeline. All ranks are there. Who says nothing for 4 s is left out
  /// after a fault. `least`: so many ranks may go on; 0: more than half of those who made the last
  /// complete step together, or half with the lowest of them.
  Survivors(Transport& transport, int least);

  struct Agreed {
    std::uint32_t steps;       ///< the most that any of them has seen complete
    std::vector<int> lost;     ///< this time
    std::vector<int> members;  ///< who is left
    bool enough;               ///< they may go on
  };

  /// After a fault, by all who are left; `steps`: complete ones, as this rank has seen. Throws
  /// TransportError where the others have left out this rank.
  Agreed agree(std::uint32_t steps);
  /// Nobody needs to wait for this rank any more.
  void give_up();

  /// Ranks of the transport that it was made of, here and above; ascending.
  const std::vector<int>& members() const { return members_; }
  int rank() const { return rank_; }
  /// Those who are left, numbered anew. A collective call of theirs.
  std::unique_ptr<Transport> transport() { return lifeline_->split(members_); }
  /// Who was lost when, a line each; empty where nobody was.
  std::string explain() const { return losses_; }

 private:
  using Set = std::vector<bool>;  ///< of ranks
  struct Word {
    std::uint32_t steps = 0;
    Set set;
  };
  struct Sent {
    int peer = 0;
    std::vector<std::byte> bytes = {};
    Handle handle = {};
  };

  static std::vector<int> ranks_of(const Set& set);
  std::vector<std::byte> written(const Word& word) const;
  Word read(ConstByteSpan bytes) const;
  std::size_t word_bytes() const { return sizeof(std::uint32_t) + ceil_div(set_.size(), 8); }

  void tell(std::uint32_t steps);
  void tell(int peer, const std::vector<std::byte>& word);
  void forget_sent();
  void send_rest();
  bool hear(int peer);
  std::optional<Word> heard(int peer);
  void hear_later_words();
  void hear_later_words(int peer);
  bool hear_all();
  void take(int peer, const Word& word);
  void leave_out(int peer);
  void leave_out_silent();
  bool has_answered(int peer) const;
  bool all_have_answered() const;
  bool enough() const;
  Agreed conclude(std::uint32_t steps);

  const int rank_;
  const int least_;
  std::unique_ptr<Transport> lifeline_;
  std::vector<int> members_;
  std::vector<int> base_;         ///< who made the last complete step together
  std::uint32_t base_steps_ = 0;  ///< complete ones when the members became what they are
  std::string losses_;

  // Of the agreement that goes on. Who was told something by a message that is still on its way
  // hears of it in the next one.
  Set set_;
  bool changed_ = false;
  Clock::time_point until_;
  std::vector<Handle> ears_;                  ///< by rank
  std::vector<std::optional<Word>> answers_;  ///< the last of each
  std::list<Sent> sent_;
};

}  // namespace tersor
