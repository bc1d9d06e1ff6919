# Checks the options of scripts/cluster, and makes hosts and links. Sourced by scripts/cluster.
# shellcheck shell=bash disable=SC2154 # scripts/cluster sets the other variables

# Each host has the shaped interface eth0 for measurements, and the unshaped interface eth1 for
# mpirun. mpirun's own bytes are not counted, and mpirun survives a cut link.
network=10.77.0
control_network=10.78.0
most_hosts=64 # the limit of mpirun without a tree of launchers
queue_bytes=8388608

# --- options ---

# bits_a_second RATE: converts 100mbit or 2.5gbit. Prints nothing for an invalid rate.
bits_a_second() {
  [[ ${1,,} =~ ^([0-9]{1,6}(\.[0-9]{1,6})?)([kmg])bit$ ]] || return 0
  awk -v value="${BASH_REMATCH[1]}" -v unit="${BASH_REMATCH[3]}" \
    'BEGIN { printf "%.0f", value * 10 ^ (3 * index("kmg", unit)) }'
}

check_rate() {
  local bits
  [[ $1 != none ]] || return 0
  bits=$(bits_a_second "$1")
  [[ -n $bits ]] || complain "--rate $1: give one like 100mbit, 1gbit or 2.5gbit, or none"
  ((bits >= 100000 && bits <= 100000000000)) || complain "--rate $1: give 100kbit to 100gbit"
}

check_burst() {
  [[ $1 =~ ^[0-9]{1,9}$ && $1 -ge 1600 ]] ||
    complain "--burst $1: give bytes, 1600 (a packet) or more"
}

check_delay() {
  [[ ! $1 =~ ^[0.]+[a-z]+$ && $1 =~ ^[0-9]{1,4}(\.[0-9]{1,3})?(us|ms)$ ]] ||
    complain "--delay $1: give one like 50us or 2.5ms, one way, below 10 s"
}

check_loss() {
  [[ ! $1 =~ ^[0.]+%$ && $1 =~ ^[0-9]{1,2}(\.[0-9]{1,6})?%$ ]] ||
    complain "--loss $1: give one like 0.1%, above 0 and below 100 %"
}

check_congestion() {
  local available
  available=$(</proc/sys/net/ipv4/tcp_available_congestion_control)
  [[ " $available " == *" $1 "* ]] || complain "--congestion $1: this kernel has: $available"
}

parse_up() {
  [[ ${1:-} =~ ^[1-9][0-9]?$ && $1 -le $most_hosts ]] ||
    explain_usage "'${1:-}' hosts: give a number from 1 to $most_hosts"
  hosts=$1 rate=1gbit burst='' delay='' loss='' congestion=''
  shift
  while [[ $# -gt 0 ]]; do
    [[ $# -gt 1 ]] || explain_usage "$1 needs a value"
    case $1 in
      --rate | --burst | --delay | --loss | --congestion) ;;
      *) explain_usage "unknown option $1" ;;
    esac
    "check_${1#--}" "$2"
    printf -v "${1#--}" %s "$2"
    shift 2
  done
}

# Prepares tc's arguments. After a pause, tc sends up to the burst at once. The default is the bytes of
# a millisecond: on a busy machine, a late timer would slow a link with a shorter burst.
plan_shape() {
  local bits least=4096
  shape=(bfifo limit "$queue_bytes") # no rate: a plain queue with counters
  impairment=()
  if [[ $rate != none ]]; then
    bits=$(bits_a_second "$rate")
    burst=${burst:-$((bits / 8000 > least ? bits / 8000 : least))}
    shape=(tbf rate "${bits}bit" burst "$burst" limit "$queue_bytes")
  fi
  if [[ -n $delay$loss ]]; then
    impairment=(netem limit 100000 ${delay:+delay "$delay"} ${loss:+loss "$loss"})
  fi
}

# --- hosts and links ---

# Records the names before the first namespace exists. `down` then removes the namespaces of a killed
# `up`, and no other namespaces.
claim() {
  local name
  [[ ! -e $state ]] || complain "a cluster is up already: run scripts/cluster down"
  for name in "$hub" $(host_names); do
    [[ ! -e /run/netns/$name ]] ||
      complain "another program has the namespace $name: set TERSOR_CLUSTER=NAME"
  done
  mkdir -p "$(dirname "$state")"
  mkdir "$state" 2>/dev/null || complain "another process runs 'up'"
  trap give_up EXIT
  echo "$hosts" >"$state/hosts"
}

give_up() {
  remove
  complain "the cluster was not made"
}

# Disables IPv6, because the counters would count the messages of IPv6 itself.
make_namespace() {
  ip netns add "$1" ||
    complain "cannot make a namespace: a container needs CAP_SYS_ADMIN and CAP_NET_ADMIN"
  ip -n "$1" link set lo up
  # shellcheck disable=SC2016 # the inner shell's
  ip netns exec "$1" sh -c 'for file in /proc/sys/net/ipv6/conf/*/disable_ipv6; do
    [ ! -e "$file" ] || echo 1 >"$file"; done'
}

# Tries the queues on the hub's bridge.
check_kernel() {
  try_queue "${shape[@]}" || complain "this kernel has no ${shape[0]}: load it" \
    "(modprobe sch_${shape[0]}), or use --rate none"
  [[ ${#impairment[@]} -eq 0 ]] || try_queue "${impairment[@]}" || complain \
    "this kernel has no netem: load it (modprobe sch_netem), or omit --delay and --loss"
}

try_queue() { tc -n "$hub" qdisc add dev links root "$@" && tc -n "$hub" qdisc del dev links root; }

make_hub() {
  local bridge
  make_namespace "$hub"
  for bridge in links control; do
    ip -n "$hub" link add "$bridge" type bridge ||
      complain "this kernel has no bridges: load them (modprobe bridge veth)"
    ip -n "$hub" link set "$bridge" up
  done
  ip -n "$hub" address add "$control_network.254/24" dev control
  check_kernel
}

# connect NUMBER INTERFACE BRIDGE NETWORK
connect() {
  ip -n "$hub" link add "$3$1" type veth peer name "$2" netns "$prefix$1"
  ip -n "$hub" link set "$3$1" master "$3" up
  ip -n "$prefix$1" address add "$4.$(($1 + 1))/24" dev "$2"
  ip -n "$prefix$1" link set "$2" up
}

# Both ends send at the link's rate. The hub's end adds delay and loss, once per path.
shape_link() {
  local parent=(root)
  tc -n "$prefix$1" qdisc add dev eth0 root "${shape[@]}"
  if [[ ${#impairment[@]} -gt 0 ]]; then
    tc -n "$hub" qdisc add dev "links$1" root handle 1: "${impairment[@]}"
    parent=(parent 1:1)
  fi
  tc -n "$hub" qdisc add dev "links$1" "${parent[@]}" "${shape[@]}"
  [[ -z $loss ]] || ip -n "$prefix$1" link set eth0 gso_max_segs 1 # otherwise, a loss drops 64 KiB
}

# Sets windows that fill any link (the kernel's defaults end at a few MiB). The route sets the congestion
# control, because a namespace may only choose among the kernel's allowed algorithms.
tune_tcp() {
  ip netns exec "$prefix$1" sh -c 'cd /proc/sys/net/ipv4 && echo 4096 65536 67108864 >tcp_wmem &&
    echo 4096 131072 67108864 >tcp_rmem'
  [[ -z $congestion ]] || ip -n "$prefix$1" route change "$network.0/24" dev eth0 proto kernel \
    scope link src "$network.$(($1 + 1))" congctl "$congestion"
}

make_host() {
  make_namespace "$prefix$1"
  connect "$1" eth0 links "$network"
  connect "$1" eth1 control "$control_network"
  tune_tcp "$1"
  shape_link "$1"
}

# Writes /etc/hosts of the hosts, so no program waits for a name server.
write_names() {
  local number
  echo "127.0.0.1 localhost"
  for ((number = 0; number < hosts; ++number)); do
    echo "$network.$((number + 1)) $prefix$number"
  done
}

up() {
  local number
  parse_up "$@"
  plan_shape
  need_root
  claim
  make_hub
  for ((number = 0; number < hosts; ++number)); do make_host "$number"; done
  write_names >"$state/names"
  ln -s "$scripts/cluster" "$state/cluster" # a path without spaces, for mpirun
  echo "rate $rate${burst:+, burst $burst bytes}${delay:+, delay $delay}${loss:+, loss $loss}," \
    "TCP's congestion control" \
    "${congestion:-$(</proc/sys/net/ipv4/tcp_congestion_control)}" >"$state/link"
  trap - EXIT
  status
}
