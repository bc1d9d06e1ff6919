// Everything that needs no particular network: codecs by name, collectives, the gradient reducer,
// ranks in one process. <tersor/mpi.h> and <tersor/nccl.h> stand apart.
#pragma once

#include <tersor/allocate.h>
#include <tersor/auto.h>
#include <tersor/buffer.h>
#include <tersor/codec.h>
#include <tersor/collectives.h>
#include <tersor/error.h>
#include <tersor/inprocess.h>
#include <tersor/isa.h>
#include <tersor/lanes.h>
#include <tersor/reducer.h>
#include <tersor/sending.h>
#include <tersor/server.h>
#include <tersor/span.h>
#include <tersor/stream.h>
#include <tersor/threads.h>
#include <tersor/transport.h>
