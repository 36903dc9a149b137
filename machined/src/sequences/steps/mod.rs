//! Steps of sequences: each does one thing, and is understood alone.

pub(super) mod admit;
pub(super) mod attend;
pub(super) mod boot_assets;
pub(super) mod count_start;
pub(super) mod disk;
pub(super) mod find_config;
pub(super) mod kernel;
pub(super) mod last_known_time;
pub(super) mod late_disk;
pub(super) mod leave;
pub(super) mod load_modules;
pub(super) mod maintenance;
pub(super) mod needs_uefi;
pub(super) mod offer;
pub(super) mod overlay;
pub(super) mod release_memory;
pub(super) mod replaced;
pub(super) mod resume;
pub(super) mod stop;
pub(super) mod up;
