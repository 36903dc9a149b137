//! The limits of more than one kind of request, which errors name as well.

use std::time::Duration;

/// Size limit of manifests and configs. Registries accept no manifest above 4 MiB; real ones have a few KiB.
pub(crate) const LARGEST_DOCUMENT: u64 = 1 << 20;
/// Timeout for manifest, config and tokens of one image, redirections and retries included.
pub(crate) const RESOLVE: Duration = Duration::from_secs(300);
/// Time for the head of an answer, and for further tries, at an endpoint that has others behind it. The callers with the least patience wait 10 s.
pub(super) const BRIEF: Duration = Duration::from_secs(3);
