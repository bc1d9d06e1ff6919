// The version of these headers, as numbers for the preprocessor.
#pragma once

/// Changes with incompatible interfaces. Until version 1.0, the minor version does.
#define TERSOR_VERSION_MAJOR 0
/// Changes with new interfaces.
#define TERSOR_VERSION_MINOR 1
/// Changes with corrections only.
#define TERSOR_VERSION_PATCH 0
