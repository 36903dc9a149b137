//! Disks, volumes and filesystems.

use super::super::shape::{Field, Kind, Shape, Shape::*, TEXTS, kind, opt};

const NAME: Field = opt("name", Text);
const SELECTOR: Shape = Fields(&[opt("match", Text)]);
const SCHEDULE: Shape = Fields(&[opt("enabled", Bool), opt("interval", Duration)]);
const XFS: Field = opt("xfs", Fields(&[opt("minAllocationGroupSize", Text)]));

const PARTITION: Field = opt(
    "provisioning",
    Fields(&[
        opt("diskSelector", SELECTOR),
        opt("grow", Bool),
        opt("minSize", Text),
        opt("maxSize", Text),
    ]),
);

const ENCRYPTION: Field = opt(
    "encryption",
    Fields(&[
        opt("provider", OneOf(&["luks2"])),
        opt(
            "keys",
            List(&Fields(&[
                opt("slot", Int),
                opt("static", Fields(&[opt("passphrase", Text)])),
                opt("kms", Fields(&[opt("endpoint", Text)])),
                opt("nodeID", Opaque),
                opt(
                    "tpm",
                    Fields(&[
                        opt("options", Fields(&[opt("pcrs", List(&Int))])),
                        opt("checkSecurebootStatusOnEnroll", Bool),
                    ]),
                ),
                opt("lockToState", Bool),
            ])),
        ),
        opt("cipher", Text),
        opt("keySize", Int),
        opt("blockSize", Int),
        opt("options", TEXTS),
        opt("allowDiscards", Bool),
    ]),
);

pub(super) const KINDS: &[Kind] = &[
    kind(
        "ExistingVolumeConfig",
        &[
            NAME,
            opt("discovery", Fields(&[opt("volumeSelector", SELECTOR)])),
            opt(
                "mount",
                Fields(&[
                    opt("readOnly", Bool),
                    opt("disableAccessTime", Bool),
                    opt("secure", Bool),
                ]),
            ),
            opt("trim", SCHEDULE),
            opt("scrub", SCHEDULE),
        ],
    ),
    kind(
        "ExternalVolumeConfig",
        &[
            NAME,
            opt("filesystemType", OneOf(&["virtiofs"])),
            opt(
                "mount",
                Fields(&[
                    opt("readOnly", Bool),
                    opt("disableAccessTime", Bool),
                    opt("secure", Bool),
                    opt("virtiofs", Fields(&[opt("tag", Text)])),
                ]),
            ),
        ],
    ),
    kind("FilesystemTrimConfig", &[opt("interval", Duration)]),
    kind("FilesystemScrubConfig", &[opt("interval", Duration)]),
    kind("RawVolumeConfig", &[NAME, PARTITION, ENCRYPTION]),
    kind("SwapVolumeConfig", &[NAME, PARTITION, ENCRYPTION]),
    kind(
        "UserVolumeConfig",
        &[
            NAME,
            opt("volumeType", OneOf(&["directory", "disk", "partition"])),
            PARTITION,
            opt(
                "filesystem",
                Fields(&[
                    opt("type", OneOf(&["ext4", "xfs", "btrfs"])),
                    opt("projectQuotaSupport", Bool),
                    XFS,
                ]),
            ),
            ENCRYPTION,
            opt(
                "mount",
                Fields(&[opt("disableAccessTime", Bool), opt("secure", Bool)]),
            ),
            opt("trim", SCHEDULE),
            opt("scrub", SCHEDULE),
        ],
    ),
    kind(
        "VolumeConfig",
        &[
            NAME,
            PARTITION,
            opt("filesystem", Fields(&[XFS])),
            ENCRYPTION,
            opt(
                "mount",
                Fields(&[opt("secure", Bool), opt("disableAccessTime", Bool)]),
            ),
            opt("trim", SCHEDULE),
            opt("scrub", SCHEDULE),
        ],
    ),
    kind(
        "ZswapConfig",
        &[opt("maxPoolPercent", Int), opt("shrinkerEnabled", Bool)],
    ),
    kind(
        "LVMLogicalVolumeConfig",
        &[
            NAME,
            opt("type", Text),
            opt("mirrors", Int),
            opt("stripes", Int),
            opt(
                "provisioning",
                Fields(&[
                    opt("volumeGroup", Text),
                    opt("minSize", Text),
                    opt("maxSize", Text),
                ]),
            ),
        ],
    ),
    kind(
        "LVMVolumeGroupConfig",
        &[
            NAME,
            opt("provisioning", Fields(&[opt("volumeSelector", SELECTOR)])),
        ],
    ),
    kind(
        "RAIDArrayConfig",
        &[
            NAME,
            opt("level", OneOf(&["raid1"])),
            opt("metadata", OneOf(&["1.0", "1.2"])),
            opt("provisioning", Fields(&[opt("volumeSelector", SELECTOR)])),
        ],
    ),
];
