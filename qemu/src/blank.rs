//! Blank disks. Written here, as `qemu-img` is in a package of its own that a bare machine lacks.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::error::{Error, Result};
use crate::spec::DiskFormat;

/// Makes a blank, sparse disk of `bytes` bytes; replaces the file.
pub fn create_blank_disk(path: &Path, format: DiskFormat, bytes: u64) -> Result<()> {
    let create = || -> std::io::Result<()> {
        let file = File::create(path)?;
        match format {
            DiskFormat::Raw => file.set_len(bytes),
            DiskFormat::Qcow2 => {
                let metadata = blank_qcow2(bytes);
                file.write_all_at(&metadata, 0)
            }
        }
    };
    create().map_err(Error::directory("make the disk", path))
}

const CLUSTER_BITS: u32 = 16;
const CLUSTER: u64 = 1 << CLUSTER_BITS;
/// The bytes that one entry of the first-level table covers: a cluster full of 8-byte entries, each for a cluster.
const PER_L1_ENTRY: u64 = CLUSTER / 8 * CLUSTER;

/// Returns the metadata of an empty qcow2 file, version 3 (QEMU's `docs/interop/qcow2.txt`).
///
/// Clusters: 0 header, 1 refcount table, 2 refcount block, 3 and on the first-level table.
fn blank_qcow2(bytes: u64) -> Vec<u8> {
    let l1_entries = bytes.div_ceil(PER_L1_ENTRY).max(1);
    let l1_clusters = (l1_entries * 8).div_ceil(CLUSTER);
    let clusters = 3 + l1_clusters;

    let mut header = Vec::new();
    let put32 = |header: &mut Vec<u8>, value: u32| header.extend(value.to_be_bytes());
    let put64 = |header: &mut Vec<u8>, value: u64| header.extend(value.to_be_bytes());
    header.extend(b"QFI\xfb");
    put32(&mut header, 3); // version
    put64(&mut header, 0); // no backing file: offset
    put32(&mut header, 0); // no backing file: length
    put32(&mut header, CLUSTER_BITS);
    put64(&mut header, bytes.next_multiple_of(512));
    put32(&mut header, 0); // not encrypted
    put32(&mut header, u32::try_from(l1_entries).unwrap_or(u32::MAX));
    put64(&mut header, 3 * CLUSTER); // first-level table
    put64(&mut header, CLUSTER); // refcount table
    put32(&mut header, 1); // clusters of the refcount table
    put32(&mut header, 0); // snapshots
    put64(&mut header, 0); // snapshot table
    put64(&mut header, 0); // incompatible features
    put64(&mut header, 0); // compatible features
    put64(&mut header, 0); // autoclear features
    put32(&mut header, 4); // refcounts of 1 << 4 bits
    put32(&mut header, 104); // header length

    let mut image = vec![0; usize::try_from(clusters * CLUSTER).unwrap_or_default()];
    let mut put_at = |cluster: u64, offset: u64, value: &[u8]| {
        let start = usize::try_from(cluster * CLUSTER + offset).unwrap_or_default();
        image[start..start + value.len()].copy_from_slice(value);
    };
    put_at(0, 0, &header);
    put_at(1, 0, &(2 * CLUSTER).to_be_bytes());
    for used in 0..clusters {
        put_at(2, used * 2, &1_u16.to_be_bytes());
    }
    image
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_raw_disk_is_sparse() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("d.img");
        create_blank_disk(&path, DiskFormat::Raw, 8 << 30).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 8 << 30);
    }

    #[test]
    fn the_qcow2_header_says_what_follows() {
        let image = blank_qcow2(8 << 30);
        assert_eq!(&image[..8], b"QFI\xfb\0\0\0\x03");
        assert_eq!(image[24..32], (8_u64 << 30).to_be_bytes());
        assert_eq!(image[36..40], 16_u32.to_be_bytes(), "16 entries of 512 MiB");
        assert_eq!(image.len() as u64, 4 * CLUSTER);
        let counts = &image[2 * CLUSTER as usize..];
        assert_eq!(
            &counts[..10],
            [0, 1, 0, 1, 0, 1, 0, 1, 0, 0],
            "four clusters are in use"
        );
    }

    #[test]
    fn a_disk_that_cannot_be_made_is_named() {
        let error = create_blank_disk("/nowhere/d.img".as_ref(), DiskFormat::Raw, 1).unwrap_err();
        assert_eq!(error.to_string(), "cannot make the disk /nowhere/d.img");
    }
}
