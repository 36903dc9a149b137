//! A layer of an image. Its first bytes select its compression.

use std::fs;
use std::path::Path;

use instar_oci::unpack::Unpacker;
use instar_oci::{Layer, Limits, Ownership};
use machined::values::Digest;

/// A fraction of a machine's limits, so that thousands of layers are tried in a second.
const LIMITS: Limits = Limits {
    unpacked_bytes: 1 << 20,
    entries: 200,
    ratio: 200,
    ratio_from: 1 << 16,
};
/// A file beside the directory that is unpacked into.
const SENTINEL: &str = "sentinel";

/// Unpacks the layer, and checks that nothing outside of the directory has changed.
pub(crate) fn decode(blob: &[u8]) {
    let digest = Digest::of(blob);
    let layer = Layer {
        digest,
        size: blob.len() as u64,
        // Should be the digest of the unpacked layer; only an honest image has that right, and it is compared at the
        // end.
        diff_id: digest,
    };
    let Ok(outside) = tempfile::tempdir() else {
        return;
    };
    let root = outside.path().join("root");
    assert!(fs::create_dir(&root).is_ok());
    assert!(fs::write(outside.path().join(SENTINEL), SENTINEL).is_ok());
    if let Ok(mut unpacker) = Unpacker::new(&root, LIMITS, Ownership::Ignore) {
        // The layer may be refused: the check is on the files that it leaves.
        let _ = unpacker.layer(&layer, blob);
        assert!(unpacker.bytes() <= LIMITS.unpacked_bytes + 1);
    }
    assert!(
        is_untouched(outside.path()),
        "something was written outside"
    );
}

fn is_untouched(outside: &Path) -> bool {
    let entries = fs::read_dir(outside).into_iter().flatten().flatten();
    let sentinel = fs::read_to_string(outside.join(SENTINEL));
    entries.count() == 2 && sentinel.is_ok_and(|text| text == SENTINEL)
}
