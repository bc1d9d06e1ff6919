// Includes the public headers for work on any network: codecs by name, collectives, the gradient
// reducer, and ranks in one process. Include <tersor/mpi.h>, <tersor/nccl.h>, <tersor/tcp.h> and
// <tersor/gossip.h> separately.
#pragma once

#include <tersor/accumulators.h>
#include <tersor/allocate.h>
#include <tersor/auto.h>
#include <tersor/buffer.h>
#include <tersor/code_sections.h>
#include <tersor/codec.h>
#include <tersor/collectives.h>
#include <tersor/delta.h>
#include <tersor/error.h>
#include <tersor/inprocess.h>
#include <tersor/isa.h>
#include <tersor/reducer.h>
#include <tersor/sending.h>
#include <tersor/server.h>
#include <tersor/span.h>
#include <tersor/stream.h>
#include <tersor/threads.h>
#include <tersor/transport.h>
#include <tersor/version.h>
