//! Frees lost clusters, which are marked as used but belong to no file: the power went or a write failed half-way through a change.
//!
//! Linux never frees them, and after some interrupted upgrades there would be no room for another. fsck.fat would make files of them in the
//! root folder, and repair everything else it finds; here they are only marked as free. Each write frees some clusters in one sector, so
//! that any of the writes may be the last one or be lost.
//!
//! Names and layout are those of Microsoft's "FAT: General Overview of On-Disk Format", 1.03.

use std::{collections::BTreeSet, fs::File, io, os::unix::fs::FileExt};

use thiserror::Error;

/// The 28 bits of an entry of the FAT; the other bits must be kept.
const ENTRY_BITS: u32 = 0x0fff_ffff;
/// The entry of a cluster that cannot be used.
const BAD: u32 = 0x0fff_fff7;
/// Entries from this value on end a chain.
const END: u32 = 0x0fff_fff8;
/// The first cluster's number.
const FIRST: u32 = 2;
/// Length of a folder's entry, in bytes.
const FOLDER_ENTRY: usize = 32;
/// Size limit of a FAT, in bytes: a partition of 512 GiB with clusters of 32 KiB has this much. Ours has 0.5 MiB.
const LARGEST_TABLE: u64 = 64 << 20;

/// Why lost clusters were not freed.
#[derive(Debug, Error)]
pub enum NotFreed {
    /// The device failed.
    #[error("{step} the partition failed")]
    Io {
        /// The operation.
        step: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
    /// The filesystem is not as mkfs.fat makes it for us.
    #[error("the partition holds no FAT32: {0}")]
    NotFat32(&'static str),
    /// A folder cannot be read, so lost clusters cannot be told from others. Nothing was written.
    #[error("the chain of the folder that begins at cluster {0} is damaged")]
    Folder(u32),
}

fn failed(step: &'static str) -> impl FnOnce(io::Error) -> NotFreed {
    move |source| NotFreed::Io { step, source }
}

/// Frees lost clusters, and returns their size in bytes. The partition must not be mounted.
///
/// # Errors
/// The partition cannot be read or written, or its filesystem is not understood.
pub fn free_lost_clusters(partition: &File) -> Result<u64, NotFreed> {
    let layout = Layout::read(partition)?;
    let mut table = Table::read(partition, &layout)?;
    let mut owned = Owned::new(&layout);
    let mut folders = vec![layout.root];
    while let Some(folder) = folders.pop() {
        let clusters = owned.take(&table, folder);
        if !clusters.is_whole {
            return Err(NotFreed::Folder(folder));
        }
        for cluster in clusters.taken {
            for entry in layout
                .read_cluster(partition, cluster)?
                .chunks_exact(FOLDER_ENTRY)
            {
                match Leads::of(entry) {
                    Leads::ToFolder(first) => folders.push(first),
                    // A file whose chain is broken still owns the rest of it.
                    Leads::ToFile(first) => drop(owned.take(&table, first)),
                    Leads::Nowhere => {}
                }
            }
        }
    }
    let lost: Vec<u32> = (FIRST..layout.clusters_end)
        .filter(|cluster| !owned.has(*cluster) && table.is_taken(*cluster))
        .collect();
    let sectors: BTreeSet<u64> = lost.iter().map(|cluster| table.free(*cluster)).collect();
    if !sectors.is_empty() {
        // An earlier error belongs to another writer; the kernel reports it to the next caller, so it is taken here.
        let _ = partition.sync_all();
        // The first FAT last: as long as it has lost clusters they are found again, whatever the copy has.
        for copy in (0..layout.tables).rev() {
            for sector in &sectors {
                table.write(partition, &layout, copy, *sector)?;
            }
            partition.sync_all().map_err(failed("flushing"))?;
        }
    }
    Ok(lost.len() as u64 * layout.cluster_bytes())
}

/// The layout of the filesystem, from its first sector.
struct Layout {
    /// Size in bytes.
    sector: u64,
    sectors_per_cluster: u64,
    /// The sector of the first FAT.
    first_table: u64,
    /// Number of FATs, each a copy of the first.
    tables: u64,
    sectors_per_table: u64,
    /// The root folder's first cluster.
    root: u32,
    /// One past the last cluster.
    clusters_end: u32,
}

impl Layout {
    fn read(partition: &File) -> Result<Self, NotFreed> {
        let mut sector = [0; 512];
        partition
            .read_exact_at(&mut sector, 0)
            .map_err(failed("reading"))?;
        Self::parse(&sector)
    }

    fn parse(boot: &[u8; 512]) -> Result<Self, NotFreed> {
        let two = |at: usize| u64::from(u16::from_le_bytes([boot[at], boot[at + 1]]));
        let four = |at: usize| two(at) | two(at + 2) << 16;
        let require = |holds: bool, what| match holds {
            true => Ok(()),
            false => Err(NotFreed::NotFat32(what)),
        };
        let sector = two(11);
        let sectors_per_cluster = u64::from(boot[13]);
        let (first_table, tables) = (two(14), u64::from(boot[16]));
        let sectors_per_table = four(36);
        require(two(510) == 0xaa55, "no boot sector")?;
        require(
            (512..=4096).contains(&sector) && sector.is_power_of_two(),
            "the size of its sectors",
        )?;
        require(
            sectors_per_cluster.is_power_of_two(),
            "the size of its clusters",
        )?;
        // FAT32 has 0 here, where FAT12 and FAT16 have the size of their FATs.
        require(two(22) == 0 && sectors_per_table > 0, "the kind of FAT")?;
        require(
            first_table > 0 && tables > 0 && sectors_per_table * sector <= LARGEST_TABLE,
            "the place of its FATs",
        )?;
        // BPB_ExtFlags: whether only one of the FATs is in use.
        require(two(40) & 0x80 == 0, "one of its FATs alone is in use")?;
        let data = first_table + tables * sectors_per_table;
        let sectors = four(32);
        require(sectors > data, "its length")?;
        let clusters = (sectors - data) / sectors_per_cluster;
        let entries = sectors_per_table * sector / 4;
        let clusters_end = u32::try_from(clusters + u64::from(FIRST))
            .ok()
            .filter(|end| *end <= BAD && u64::from(*end) <= entries)
            .ok_or(NotFreed::NotFat32("the number of its clusters"))?;
        Ok(Self {
            sector,
            sectors_per_cluster,
            first_table,
            tables,
            sectors_per_table,
            root: u32::try_from(four(44)).unwrap_or(0) & ENTRY_BITS,
            clusters_end,
        })
    }

    fn cluster_bytes(&self) -> u64 {
        self.sectors_per_cluster * self.sector
    }

    fn has(&self, cluster: u32) -> bool {
        (FIRST..self.clusters_end).contains(&cluster)
    }

    fn read_cluster(&self, partition: &File, cluster: u32) -> Result<Vec<u8>, NotFreed> {
        let data = self.first_table + self.tables * self.sectors_per_table;
        let sector = data + u64::from(cluster - FIRST) * self.sectors_per_cluster;
        read(partition, sector * self.sector, self.cluster_bytes())
    }
}

fn read(partition: &File, at: u64, bytes: u64) -> Result<Vec<u8>, NotFreed> {
    let mut content = vec![0; usize::try_from(bytes).unwrap_or(0)];
    partition
        .read_exact_at(&mut content, at)
        .map_err(failed("reading"))?;
    Ok(content)
}

/// The first FAT, which is the one that Linux reads.
struct Table {
    bytes: Vec<u8>,
    sector: usize,
}

impl Table {
    fn read(partition: &File, layout: &Layout) -> Result<Self, NotFreed> {
        let bytes = layout.sectors_per_table * layout.sector;
        Ok(Self {
            bytes: read(partition, layout.first_table * layout.sector, bytes)?,
            sector: usize::try_from(layout.sector).unwrap_or(512),
        })
    }

    /// The entry of an existing cluster.
    fn entry(&self, cluster: u32) -> &[u8] {
        let at = cluster as usize * 4;
        &self.bytes[at..at + 4]
    }

    fn number(&self, cluster: u32) -> u32 {
        let entry = self.entry(cluster).iter().rev();
        entry.fold(0, |number, byte| number << 8 | u32::from(*byte))
    }

    fn next(&self, cluster: u32) -> u32 {
        self.number(cluster) & ENTRY_BITS
    }

    fn is_taken(&self, cluster: u32) -> bool {
        !matches!(self.next(cluster), 0 | BAD)
    }

    /// Marks a cluster as free, and returns the sector of its entry in the FAT.
    fn free(&mut self, cluster: u32) -> u64 {
        let at = cluster as usize * 4;
        let free = self.number(cluster) & !ENTRY_BITS;
        self.bytes[at..at + 4].copy_from_slice(&free.to_le_bytes());
        (at / self.sector) as u64
    }

    fn write(
        &self,
        partition: &File,
        layout: &Layout,
        copy: u64,
        sector: u64,
    ) -> Result<(), NotFreed> {
        let at = usize::try_from(sector).unwrap_or(0) * self.sector;
        let table = layout.first_table + copy * layout.sectors_per_table;
        partition
            .write_all_at(
                &self.bytes[at..at + self.sector],
                (table + sector) * layout.sector,
            )
            .map_err(failed("writing"))
    }
}

/// The clusters that belong to a file or folder.
struct Owned<'a> {
    layout: &'a Layout,
    flags: Vec<bool>,
}

/// The clusters taken from a chain.
struct Chain {
    taken: Vec<u32>,
    /// Whether the chain was taken to its end, without a cluster of another chain.
    is_whole: bool,
}

impl<'a> Owned<'a> {
    fn new(layout: &'a Layout) -> Self {
        Self {
            layout,
            flags: vec![false; layout.clusters_end as usize],
        }
    }

    fn has(&self, cluster: u32) -> bool {
        self.flags[cluster as usize]
    }

    /// Takes the chain that begins at this cluster, as far as it goes.
    fn take(&mut self, table: &Table, first: u32) -> Chain {
        let (mut taken, mut next) = (Vec::new(), first);
        while self.layout.has(next) && !self.has(next) {
            self.flags[next as usize] = true;
            taken.push(next);
            next = table.next(next);
        }
        Chain {
            taken,
            is_whole: next >= END,
        }
    }
}

/// The target of a folder's entry.
enum Leads {
    Nowhere,
    ToFile(u32),
    ToFolder(u32),
}

impl Leads {
    /// Reads an entry. Linux reads on behind the last entry, so all entries count.
    fn of(entry: &[u8]) -> Self {
        const FREE: u8 = 0;
        const DELETED: u8 = 0xe5;
        const FOLDER: u8 = 0x10;
        /// A volume's label, or a part of a long name.
        const LABEL: u8 = 0x08;
        let attributes = entry[11];
        let is_itself_or_parent = entry[0] == b'.';
        if matches!(entry[0], FREE | DELETED) || is_itself_or_parent || attributes & LABEL != 0 {
            return Self::Nowhere;
        }
        let first = u32::from_le_bytes([entry[26], entry[27], entry[20], entry[21]]) & ENTRY_BITS;
        match (first, attributes & FOLDER != 0) {
            // An empty file has no cluster.
            (0, _) => Self::Nowhere,
            (_, true) => Self::ToFolder(first),
            (_, false) => Self::ToFile(first),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::{fs, path::PathBuf, process::Command};

    const BYTES: u64 = 48 << 20;

    /// A partition made by mkfs.fat and filled by mtools; fsck.fat checks it.
    struct Partition {
        folder: tempfile::TempDir,
    }

    fn run(program: &str, arguments: &[&str]) -> (Option<i32>, String) {
        let path = std::env::var("PATH").unwrap_or_default();
        let ended = Command::new(program)
            .args(arguments)
            .env("PATH", format!("{path}:/usr/sbin:/sbin"))
            .output()
            .unwrap_or_else(|error| panic!("{program} does not start: {error}"));
        let said = String::from_utf8_lossy(&ended.stdout).into_owned();
        (ended.status.code(), said)
    }

    impl Partition {
        /// Makes one with two folders and files in them, one of which grew after another was written.
        fn new(kind: &str) -> Self {
            let folder = tempfile::tempdir().unwrap();
            let partition = Self { folder };
            let image = partition.path().display().to_string();
            File::create(&image).unwrap().set_len(BYTES).unwrap();
            let sectors = if kind == "32" { "1" } else { "4" };
            let made = run("mkfs.fat", &["-F", kind, "-s", sectors, &image]);
            assert_eq!(made.0, Some(0), "{}", made.1);
            for (path, bytes) in Self::FILES {
                let file = partition.folder.path().join("content");
                fs::write(&file, content(bytes)).unwrap();
                let place = format!("::{path}");
                match bytes {
                    0 => run("mmd", &["-i", &image, &place]),
                    _ => run(
                        "mcopy",
                        &["-i", &image, &file.display().to_string(), &place],
                    ),
                };
            }
            partition
        }

        /// Folders have no size. The first folder has more entries than fit into a cluster.
        const FILES: [(&str, usize); 14] = [
            ("/EFI", 0),
            ("/EFI/instar", 0),
            ("/EFI/instar/a.efi", 700_000),
            ("/EFI/instar/a long name that takes several entries.efi", 1),
            ("/EFI/1", 513),
            ("/EFI/2", 512),
            ("/EFI/3", 1),
            ("/EFI/a rather long name, the first one", 100),
            ("/EFI/a rather long name, the second one", 100),
            ("/EFI/a rather long name, the third one", 100),
            ("/EFI/a rather long name, the fourth one", 100),
            ("/EFI/a rather long name, the fifth one", 100),
            ("/EFI/deep", 0),
            ("/EFI/deep/b.efi", 100_000),
        ];

        fn path(&self) -> PathBuf {
            self.folder.path().join("partition")
        }

        fn bytes(&self) -> Vec<u8> {
            fs::read(self.path()).unwrap()
        }

        fn layout(&self) -> Layout {
            Layout::read(&File::open(self.path()).unwrap()).unwrap()
        }

        /// Sets an entry in all FATs.
        fn set(&self, cluster: u32, next: u32) {
            let layout = self.layout();
            let file = File::options().write(true).open(self.path()).unwrap();
            for copy in 0..layout.tables {
                let sector = layout.first_table + copy * layout.sectors_per_table;
                let at = sector * layout.sector + u64::from(cluster) * 4;
                file.write_all_at(&next.to_le_bytes(), at).unwrap();
            }
        }

        fn free_lost_clusters(&self) -> Result<u64, NotFreed> {
            let file = File::options().read(true).write(true).open(self.path());
            free_lost_clusters(&file.unwrap())
        }

        /// The result of fsck.fat; nothing when it ends with 0.
        fn checked(&self) -> (Option<i32>, String) {
            run("fsck.fat", &["-n", &self.path().display().to_string()])
        }

        fn holds_its_files(&self) {
            let image = self.path().display().to_string();
            for (path, bytes) in Self::FILES.iter().filter(|(_, bytes)| *bytes > 0) {
                let (_, said) = run("mtype", &["-i", &image, &format!("::{path}")]);
                assert!(said.as_bytes() == content(*bytes), "{path} is another one");
            }
        }

        /// The first cluster of a file or folder, by its short name.
        fn first_cluster(&self, short_name: &[u8; 11]) -> u32 {
            let bytes = self.bytes();
            let mut entries = bytes.chunks_exact(FOLDER_ENTRY);
            let entry = entries.find(|entry| entry.starts_with(short_name)).unwrap();
            u32::from(u16::from_le_bytes([entry[26], entry[27]]))
        }
    }

    /// Text, which mtype prints unchanged.
    fn content(bytes: usize) -> Vec<u8> {
        let numbers = (0..).flat_map(|number: u32| format!("{number} ").into_bytes());
        numbers.take(bytes).collect()
    }

    #[test]
    fn a_partition_that_lost_nothing_is_not_written_to() {
        let partition = Partition::new("32");
        partition.holds_its_files();
        let before = partition.bytes();
        assert_eq!(partition.free_lost_clusters().unwrap(), 0);
        assert!(partition.bytes() == before);
    }

    #[test]
    fn lost_chains_are_free_again_and_nothing_else_is_changed() {
        let partition = Partition::new("32");
        let bad = 60_000;
        partition.set(bad, BAD);
        let before = partition.bytes();
        // One chain with its end, one without, one that leads into a file, one of a single cluster.
        let layout = partition.layout();
        let last = layout.clusters_end - 1;
        for cluster in 50_000..50_999 {
            partition.set(cluster, cluster + 1);
        }
        partition.set(50_999, ENTRY_BITS);
        partition.set(40_000, 40_001);
        partition.set(40_001, partition.first_cluster(b"A       EFI"));
        partition.set(last, 0xf000_0000 | END);
        let (code, said) = partition.checked();
        assert!(code == Some(1) && said.contains("Reclaimed 1003"), "{said}");

        assert_eq!(partition.free_lost_clusters().unwrap(), 1003 * 512);
        partition.holds_its_files();
        let (_, said) = partition.checked();
        assert!(!said.contains("Reclaimed"), "{said}");
        partition.set(last, 0);
        assert!(partition.bytes() == before, "more was changed");
        assert_eq!(partition.free_lost_clusters().unwrap(), 0);
    }

    #[test]
    fn what_belongs_to_a_file_of_which_a_part_is_missing_stays() {
        let partition = Partition::new("32");
        let file = partition.first_cluster(b"B       EFI");
        let rest = 100_000_u32.div_ceil(512) - 21;
        partition.set(file + 20, 0);
        // The clusters behind the gap are lost.
        let freed = partition.free_lost_clusters().unwrap();
        assert_eq!(freed, u64::from(rest) * 512);
        let table = Table::read(&File::open(partition.path()).unwrap(), &partition.layout());
        let table = table.unwrap();
        for cluster in file..file + 20 {
            assert_eq!(table.next(cluster), cluster + 1);
        }
    }

    #[test]
    fn a_cut_leaves_the_files_and_what_is_freed_the_next_time() {
        let partition = Partition::new("32");
        for cluster in 30_080..31_080 {
            partition.set(cluster, cluster + 1);
        }
        let before = partition.bytes();
        partition.free_lost_clusters().unwrap();
        let after = partition.bytes();
        let changed: Vec<usize> = (0..after.len() / 512)
            .map(|sector| sector * 512)
            .filter(|at| before[*at..][..512] != after[*at..][..512])
            .collect();
        assert_eq!(changed.len(), 2 * (1000 * 4_usize).div_ceil(512));
        let (first, copy) = changed.split_at(changed.len() / 2);
        let write = |image: &mut [u8], at: usize| {
            image[at..][..512].copy_from_slice(&after[at..][..512]);
        };
        let mut flushed = before.clone();
        copy.iter().for_each(|at| write(&mut flushed, *at));
        // Any of the copy's writes may be the only one, and any of the first FAT's once the copy is flushed.
        for (image, sectors) in [(before, copy), (flushed, first)] {
            for at in sectors {
                let mut cut = image.clone();
                write(&mut cut, *at);
                fs::write(partition.path(), cut).unwrap();
                partition.holds_its_files();
                assert!(partition.free_lost_clusters().unwrap() > 0);
                assert!(partition.bytes() == after);
            }
        }
    }

    #[test]
    fn who_cannot_read_all_folders_writes_nothing() {
        let partition = Partition::new("32");
        partition.set(50_000, ENTRY_BITS);
        let folder = partition.first_cluster(b"DEEP       ");
        for damage in [0, folder, partition.layout().clusters_end] {
            partition.set(folder, damage);
            let before = partition.bytes();
            let refused = partition.free_lost_clusters().unwrap_err();
            assert!(matches!(refused, NotFreed::Folder(_)), "{refused}");
            assert!(partition.bytes() == before);
        }
    }

    #[test]
    fn what_is_no_fat32_is_refused() {
        let partition = Partition::new("16");
        let refused = partition.free_lost_clusters().unwrap_err();
        assert!(matches!(refused, NotFreed::NotFat32(_)), "{refused}");
        fs::write(partition.path(), [0; 4096]).unwrap();
        let refused = partition.free_lost_clusters().unwrap_err();
        assert!(matches!(refused, NotFreed::NotFat32(_)), "{refused}");
        fs::write(partition.path(), [0; 5]).unwrap();
        let refused = partition.free_lost_clusters().unwrap_err();
        assert!(matches!(refused, NotFreed::Io { .. }), "{refused}");
    }
}
