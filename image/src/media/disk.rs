//! The disk image: a GPT with the EFI system partition and an empty STATE, by which the node recognizes its own disk.
//! The image may be copied to a disk of any size: the node makes the other partitions at its first boot.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{Read, Seek, SeekFrom, Write},
    path::Path,
};

use anyhow::{Context, Result};
use gpt::{
    GptConfig, disk::LogicalBlockSize, mbr::ProtectiveMBR, partition::Partition, partition_types,
};
use uuid::Uuid;

use super::{
    DISK_FILE, DISK_QCOW2_FILE,
    command::{run, tool},
    fat::{self, Kind},
    new_esp::Files,
};

/// Partitions begin at multiples of this, bytes, and as much is left at the end: the backup table needs less.
const ALIGNMENT: u64 = 1 << 20;
const SECTOR: u64 = 512;
/// Size of a chunk, bytes. Empty chunks are not written: the file has holes there.
const CHUNK: usize = 64 << 10;
/// The partition that keeps the config, as machined lays it out (docs/contracts.md).
const STATE_BYTES: u64 = 24 << 20;
const STATE_LABEL: &str = "STATE";
/// GUIDs of the disk and its partitions, the same in every image, as in all copies of one image.
const DISK: Uuid = Uuid::from_u128(0x5a1f_6f3e_3b0c_4f6b_9c57_2d7b_11ce_0a01);
const ESP: Uuid = Uuid::from_u128(0x5a1f_6f3e_3b0c_4f6b_9c57_2d7b_11ce_0a02);
const STATE: Uuid = Uuid::from_u128(0x5a1f_6f3e_3b0c_4f6b_9c57_2d7b_11ce_0a03);

/// Writes the image in both formats.
pub(super) fn write(esp: &Files, esp_bytes: u64, scratch: &Path, folder: &Path) -> Result<()> {
    let partition = scratch.join("esp.img");
    let esp_bytes = esp_bytes.next_multiple_of(ALIGNMENT);
    fat::write(esp, Kind::Fat32, esp_bytes, &partition)?;
    let raw = folder.join(DISK_FILE);
    write_raw(&partition, esp_bytes, &raw)
        .with_context(|| format!("cannot write {}", raw.display()))?;
    let mut convert = tool("qemu-img");
    convert
        .args(["convert", "-f", "raw", "-O", "qcow2"])
        .arg(&raw)
        .arg(folder.join(DISK_QCOW2_FILE));
    run(&mut convert, "qemu-utils")
}

fn write_raw(partition: &Path, esp_bytes: u64, out: &Path) -> Result<()> {
    let mut disk = File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(out)?;
    let state = ALIGNMENT + esp_bytes;
    let bytes = state + STATE_BYTES + ALIGNMENT;
    disk.set_len(bytes)?;
    ProtectiveMBR::with_lb_size(u32::try_from(bytes / SECTOR - 1)?).overwrite_lba0(&mut disk)?;
    let mut table = GptConfig::new()
        .writable(true)
        .logical_block_size(LogicalBlockSize::Lb512)
        .create_from_device(disk, Some(DISK))?;
    let entry = |kind, guid, start: u64, length: u64, label: &str| Partition {
        part_type_guid: kind,
        part_guid: guid,
        first_lba: start / SECTOR,
        last_lba: (start + length) / SECTOR - 1,
        flags: 0,
        name: label.to_owned(),
    };
    table.update_partitions(BTreeMap::from([
        (
            1,
            entry(
                partition_types::EFI,
                ESP,
                ALIGNMENT,
                esp_bytes,
                instar_esp::LABEL,
            ),
        ),
        (
            2,
            entry(
                partition_types::LINUX_FS,
                STATE,
                state,
                STATE_BYTES,
                STATE_LABEL,
            ),
        ),
    ]))?;
    let mut disk = table.write()?;
    disk.seek(SeekFrom::Start(ALIGNMENT))?;
    copy_with_holes(&mut File::open(partition)?, &mut disk)
}

fn copy_with_holes(from: &mut File, to: &mut File) -> Result<()> {
    let mut chunk = vec![0; CHUNK];
    loop {
        let count = from.read(&mut chunk)?;
        let Some(part) = chunk.get(..count).filter(|part| !part.is_empty()) else {
            return Ok(());
        };
        if part.iter().all(|byte| *byte == 0) {
            to.seek(SeekFrom::Current(i64::try_from(count)?))?;
        } else {
            to.write_all(part)?;
        }
    }
}
