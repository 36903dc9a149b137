//! The room of a store on its disk: its limit, and the reserve that only an upgrade may use.
//!
//! ```text
//! capacity of the file system
//! ├─ 3/4 at most: images and their blobs          LIMIT
//! └─ 1/10, 512 MiB at most: left free by pulls     RESERVE
//! ```
//!
//! Neither binds a pull for an upgrade: containers' images must not keep a machine from being mended.
//!
//! The manifest tells the bytes to fetch, but not the bytes that they unpack to: at least as many. So room is planned for these, and the
//! unpacking gets the rest of the room as its limit.

/// Bytes of the reserve at most: an installer's image, packed and unpacked, and a container's layer.
const LARGEST_RESERVE: u64 = 512 << 20;

/// Bytes that are kept for upgrades on a file system of this capacity.
pub fn reserve_of(capacity: u64) -> u64 {
    (capacity / 10).min(LARGEST_RESERVE)
}

/// The facts about a store and an image that is to come into it. Sizes in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RoomFacts {
    /// Capacity of the file system.
    pub(crate) capacity: u64,
    /// Free bytes of it.
    pub(crate) free: u64,
    /// Images and blobs of the store. Files that images share count once.
    pub(crate) used: u64,
    /// Bytes that other pulls under way were promised, and that have not come yet.
    pub(crate) promised: u64,
    /// Blobs of the image that are not in the store.
    pub(crate) missing: u64,
    /// All layers of the image, packed.
    pub(crate) packed: u64,
    /// Whether it is for an upgrade.
    pub(crate) for_upgrade: bool,
}

/// The plan for an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RoomPlan {
    /// There is room for it and its blobs, and for this many unpacked bytes.
    WithBlobs(u64),
    /// There is room for it alone.
    WithoutBlobs(u64),
    /// There is no room.
    None(NoRoom),
}

/// The numbers of a lack of room, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoRoom {
    /// Bytes that the image needs at least.
    pub needed: u64,
    /// Free bytes.
    pub free: u64,
    /// Bytes that are kept for upgrades.
    pub reserve: u64,
    /// Bytes that other pulls under way are going to need.
    pub promised: u64,
    /// Images and blobs that are here.
    pub used: u64,
    /// Bytes that they may have.
    pub limit: u64,
}

impl std::fmt::Display for NoRoom {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mebibytes = |bytes: u64| bytes.div_ceil(1 << 20);
        write!(
            f,
            "it needs {} MiB at least; {} MiB are free, of which {} MiB are kept for upgrades, and images have {} of the {} MiB that they \
             may have",
            mebibytes(self.needed),
            self.free >> 20,
            mebibytes(self.reserve),
            mebibytes(self.used),
            self.limit >> 20,
        )?;
        match self.promised {
            0 => Ok(()),
            promised => write!(
                f,
                "; other pulls under way need {} MiB",
                mebibytes(promised)
            ),
        }
    }
}

impl NoRoom {
    /// The room that there is.
    fn room(&self) -> u64 {
        let of_disk = self.free.saturating_sub(self.reserve);
        let of_limit = self.limit.saturating_sub(self.used);
        of_disk.min(of_limit).saturating_sub(self.promised)
    }
}

impl RoomFacts {
    /// The reserve of this file system.
    pub(super) fn reserve(&self) -> u64 {
        match self.for_upgrade {
            true => 0,
            false => reserve_of(self.capacity),
        }
    }

    /// The limit of the store.
    fn limit(&self) -> u64 {
        match self.for_upgrade {
            true => self.capacity,
            false => self.capacity / 4 * 3,
        }
    }

    /// Bytes of the capacity that the limit leaves for other things.
    pub(super) fn beyond_limit(&self) -> u64 {
        self.capacity - self.limit()
    }

    /// Plans the room for the image.
    pub(crate) fn plan(&self) -> RoomPlan {
        let room = self.lack(0).room();
        let with_blobs = room.saturating_sub(self.missing);
        if with_blobs >= self.packed && room >= self.missing {
            return RoomPlan::WithBlobs(with_blobs);
        }
        match room >= self.packed {
            true => RoomPlan::WithoutBlobs(room),
            false => RoomPlan::None(self.lack(self.packed)),
        }
    }

    /// The numbers for an image that needs more than there is.
    pub(crate) fn lack(&self, needed: u64) -> NoRoom {
        NoRoom {
            needed,
            free: self.free,
            reserve: self.reserve(),
            promised: self.promised,
            used: self.used,
            limit: self.limit(),
        }
    }
}

/// The room for several images together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RoomForAll {
    /// Bytes to be fetched.
    pub fetch: u64,
    /// The numbers: what the images and their blobs need at least, and what there is.
    pub numbers: NoRoom,
}

impl RoomForAll {
    /// Plans with the facts about all images.
    pub(crate) fn of(facts: &RoomFacts) -> Self {
        RoomForAll {
            fetch: facts.missing,
            numbers: facts.lack(facts.missing.saturating_add(facts.packed)),
        }
    }

    /// Whether there is room for all of them. An image that is fetched ahead has to be there with its blobs: it may be needed when there is
    /// no registry.
    pub fn is_enough(&self) -> bool {
        self.numbers.room() >= self.numbers.needed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A disk of 1000 bytes, of which 900 are free.
    const EMPTY: RoomFacts = RoomFacts {
        capacity: 1000,
        free: 900,
        used: 0,
        promised: 0,
        missing: 100,
        packed: 100,
        for_upgrade: false,
    };

    #[test]
    fn the_plan_keeps_to_the_limit_and_the_reserve() {
        let lack = |facts: RoomFacts| RoomPlan::None(facts.lack(facts.packed));
        let full = RoomFacts { free: 150, ..EMPTY };
        let fuller = RoomFacts { free: 299, ..EMPTY };
        let upgrade = RoomFacts {
            for_upgrade: true,
            ..full
        };
        let at_limit = RoomFacts { used: 700, ..EMPTY };
        let near_limit = RoomFacts { used: 600, ..EMPTY };
        let shared = RoomFacts { missing: 0, ..full };
        let large = RoomFacts {
            capacity: 100 << 30,
            free: 600 << 20,
            ..EMPTY
        };
        for (facts, expected) in [
            (EMPTY, RoomPlan::WithBlobs(650)),
            (full, lack(full)),
            (fuller, RoomPlan::WithoutBlobs(199)),
            (upgrade, RoomPlan::WithoutBlobs(150)),
            (
                RoomFacts {
                    free: 200,
                    ..upgrade
                },
                RoomPlan::WithBlobs(100),
            ),
            (
                RoomFacts {
                    free: 99,
                    ..upgrade
                },
                lack(RoomFacts {
                    free: 99,
                    ..upgrade
                }),
            ),
            (at_limit, lack(at_limit)),
            (near_limit, RoomPlan::WithoutBlobs(150)),
            // An upgrade has the whole disk.
            (
                RoomFacts {
                    for_upgrade: true,
                    ..at_limit
                },
                RoomPlan::WithBlobs(200),
            ),
            (shared, lack(shared)),
            (
                RoomFacts {
                    free: 200,
                    ..shared
                },
                RoomPlan::WithBlobs(100),
            ),
            // Another pull needs 551 bytes.
            (
                RoomFacts {
                    promised: 551,
                    ..EMPTY
                },
                RoomPlan::WithoutBlobs(199),
            ),
            // The reserve of a large disk does not grow with it.
            (large, RoomPlan::WithBlobs((88 << 20) - 100)),
        ] {
            assert_eq!(facts.plan(), expected, "{facts:?}");
        }
    }

    #[test]
    fn several_images_need_room_for_all_of_them_and_their_blobs() {
        for (packed, missing, used, free, expected) in [
            (300, 300, 0, 900, true),
            // The limit is 750.
            (300, 300, 151, 900, false),
            // The reserve is 100.
            (300, 300, 0, 699, false),
            (300, 300, 0, 700, true),
            // Blobs that are here need no room.
            (600, 0, 100, 700, true),
        ] {
            let facts = RoomFacts {
                packed,
                missing,
                used,
                free,
                ..EMPTY
            };
            let room = RoomForAll::of(&facts);
            assert_eq!(room.is_enough(), expected, "{facts:?}");
            assert_eq!(
                (room.fetch, room.numbers.needed),
                (missing, missing + packed)
            );
        }
    }

    #[test]
    fn a_lack_is_told_with_numbers() {
        let facts = RoomFacts {
            capacity: 1000 << 20,
            free: 150 << 20,
            used: 30 << 20,
            ..EMPTY
        };
        assert_eq!(
            facts.lack(60 << 20).to_string(),
            "it needs 60 MiB at least; 150 MiB are free, of which 100 MiB are kept for upgrades, and images have 30 of the 750 MiB that \
             they may have"
        );
        let beside = RoomFacts {
            promised: 5 << 20,
            ..facts
        };
        let text = beside.lack(60 << 20).to_string();
        assert!(text.ends_with("may have; other pulls under way need 5 MiB"));
    }
}
