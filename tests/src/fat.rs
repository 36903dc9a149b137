//! Places on the EFI system partition of a disk image, for tests that fail the writes to its sectors.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::{Context, Result};

/// The sector at which the partition of disk images begins.
const ESP_SECTOR: u64 = 2048;

/// The FAT32 of the EFI system partition, by its first sector (Microsoft's specification of FAT, 3.1).
#[derive(Debug)]
pub struct Fat {
    bytes: Vec<u8>,
}

impl Fat {
    /// Reads the FAT32 of a disk.
    pub fn read(disk: &Path) -> Result<Self> {
        let mut bytes = vec![0; usize::try_from(instar_esp::DEFAULT_BYTES)?];
        File::open(disk)?.read_exact_at(&mut bytes, ESP_SECTOR * 512)?;
        Ok(Self { bytes })
    }

    fn number(&self, at: usize, bytes: usize) -> u64 {
        let number = self.bytes[at..at + bytes].iter().rev();
        number.fold(0, |number, byte| number << 8 | u64::from(*byte))
    }

    fn sectors_per_cluster(&self) -> u64 {
        self.number(13, 1)
    }

    fn reserved(&self) -> u64 {
        self.number(14, 2)
    }

    /// Number of sectors of all copies of the FAT.
    fn tables(&self) -> u64 {
        self.number(16, 1) * self.number(36, 4)
    }

    /// One past the last cluster.
    fn clusters_end(&self) -> usize {
        let data = self.number(32, 4) - self.reserved() - self.tables();
        2 + (data / self.sectors_per_cluster()) as usize
    }

    /// Returns the first copy of the FAT.
    fn table(&self) -> Vec<u8> {
        let (at, sectors) = (self.reserved() * 512, self.number(36, 4));
        self.bytes[at as usize..][..sectors as usize * 512].to_vec()
    }

    fn clusters_of(&self, bytes: u64) -> u64 {
        bytes / 512 / self.sectors_per_cluster()
    }

    /// Returns the cluster for the byte `bytes` of the next file: Linux goes on behind the cluster that it allocated
    /// last, by the hint in the second sector.
    pub fn next_free(&self, bytes: u64) -> Result<u64> {
        let table = self.table();
        let last = usize::try_from(self.number(512 + 492, 4))?;
        let is_free = |cluster: &usize| table[cluster * 4..][..4] == [0; 4];
        let count = usize::try_from(self.clusters_of(bytes))?;
        let behind = (last + 1..self.clusters_end())
            .chain(2..last)
            .filter(is_free)
            .nth(count);
        Ok(behind.context("the file does not fit")? as u64)
    }

    /// Returns the first sector of a cluster.
    pub fn sector_of(&self, cluster: u64) -> u64 {
        let first = ESP_SECTOR + self.reserved() + self.tables();
        first + (cluster - 2) * self.sectors_per_cluster()
    }

    /// Returns the sector of the first FAT that has a cluster's entry.
    pub fn table_sector_of(&self, cluster: u64) -> u64 {
        ESP_SECTOR + self.reserved() + cluster * 4 / 512
    }

    /// The first sector of a folder with this short name in it.
    pub fn sector_with(&self, short_name: &[u8; 11]) -> Option<u64> {
        let mut sectors = (0..).zip(self.bytes.chunks_exact(512));
        let found = sectors.find(|(_, sector)| {
            sector
                .chunks_exact(32)
                .any(|entry| entry.starts_with(short_name))
        });
        found.map(|(number, _)| ESP_SECTOR + number)
    }

    /// Clears a cluster's entry in all copies of the FAT, as when the power is cut before they are flushed.
    pub fn lose_entry(&self, disk: &Path, cluster: u64) -> Result<()> {
        self.write_to_tables(disk, cluster * 4, &[0; 4])
    }

    /// Allocates all free clusters but the last `leave` bytes without a file, as a change cut in the middle leaves
    /// them. Returns the number of bytes allocated.
    pub fn lose_room(&self, disk: &Path, leave: u64) -> Result<u64> {
        const END: [u8; 4] = 0x0fff_ffff_u32.to_le_bytes();
        let mut table = self.table();
        let mut free: Vec<usize> = (2..self.clusters_end())
            .filter(|cluster| table[cluster * 4..][..4] == [0; 4])
            .collect();
        free.truncate(free.len() - usize::try_from(self.clusters_of(leave))?);
        for cluster in &free {
            table[cluster * 4..][..4].copy_from_slice(&END);
        }
        self.write_to_tables(disk, 0, &table)?;
        Ok(free.len() as u64 * self.sectors_per_cluster() * 512)
    }

    /// Writes these bytes at the same place of all copies.
    fn write_to_tables(&self, disk: &Path, at: u64, bytes: &[u8]) -> Result<()> {
        let file = File::options().write(true).open(disk)?;
        for copy in 0..self.number(16, 1) {
            let table = ESP_SECTOR + self.reserved() + copy * self.number(36, 4);
            file.write_all_at(bytes, table * 512 + at)?;
        }
        Ok(())
    }
}
