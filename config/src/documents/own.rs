//! Our own kinds, for settings that Talos does not have.

use super::super::shape::{Field, Kind, Shape::*, TEXTS, kind, opt, req};

// Without TLS: a check connects to the machine itself, and there is no authority to check a certificate by.
const HTTP: Field = opt("http", Fields(&[req("url", Url(&["http"]))]));
const TCP: Field = opt("tcp", Fields(&[req("address", Text)]));

const WINDOW: Field = opt(
    "window",
    Fields(&[
        req("start", Text),
        req("length", Duration),
        opt("days", TEXTS),
        opt("utcOffset", Text),
    ]),
);

/// The kinds below with further settings of the container that their `name` names.
pub(crate) const OF_A_CONTAINER: [&str; 4] = [
    "ContainerHealthConfig",
    "ContainerStopConfig",
    "ContainerUpdateConfig",
    "ContainerUpgradeConfig",
];

pub(super) const KINDS: &[Kind] = &[
    kind(
        "BundleConfig",
        &[
            opt("approved", TEXTS),
            opt("sticks", OneOf(&["accept", "ignore"])),
            opt("askAt", TEXTS),
            opt("upgrade", Bool),
            opt("support", Bool),
        ],
    ),
    kind(
        "ContainerHealthConfig",
        &[
            req("name", Text),
            HTTP,
            TCP,
            opt("exec", Fields(&[req("command", TEXTS)])),
            opt("interval", Duration),
            opt("timeout", Duration),
            opt("failureThreshold", Int),
            opt("required", Bool),
        ],
    ),
    kind(
        "ContainerStopConfig",
        &[req("name", Text), req("timeout", Duration)],
    ),
    kind(
        "ContainerUpgradeConfig",
        &[
            req("name", Text),
            opt("strategy", OneOf(&["keep", "restart"])),
        ],
    ),
    kind(
        "ContainerUpdateConfig",
        &[
            req("name", Text),
            opt("apply", OneOf(&["rebuilds", "approved"])),
            opt("interval", Duration),
            opt("healthy", Duration),
            WINDOW,
        ],
    ),
    kind(
        "ImagePinConfig",
        &[req("images", TEXTS), WINDOW, opt("bandwidth", Text)],
    ),
    kind(
        "KubernetesConfig",
        &[req("image", Text), opt("readyWithin", Duration)],
    ),
    kind(
        "ExtensionConfig",
        &[
            req("name", Text),
            opt("target", OneOf(&["kubernetes", "os"])),
            opt("image", Text),
            opt("url", Url(&["http", "https"])),
            opt("sha256", Text),
            opt("match", Text),
            opt("publicKey", Text),
            opt("interval", Duration),
            WINDOW,
        ],
    ),
    kind(
        "UpgradeFollowConfig",
        &[
            req("channel", Text),
            opt("urls", List(&Url(&["http", "https"]))),
            req("publicKey", Text),
            opt("interval", Duration),
            opt("jitter", Duration),
            opt("labels", TEXTS),
            opt("download", Fields(&[WINDOW, opt("bandwidth", Text)])),
            opt("switch", Fields(&[WINDOW])),
            opt("approval", OneOf(&["none", "call", "key"])),
            opt("approvalKey", Text),
            opt("healthyFor", Duration),
            opt("holdFor", Duration),
            opt("report", Url(&["http", "https"])),
            opt(
                "fleetLock",
                Fields(&[req("url", Url(&["http", "https"])), opt("group", Text)]),
            ),
        ],
    ),
    kind(
        "EventLogConfig",
        &[
            req("name", Text),
            req("url", Url(&["tcp", "udp", "tls"])),
            opt("extraTags", TextMap),
        ],
    ),
    kind(
        "MetricsConfig",
        &[
            req("listen", Text),
            opt("readers", OneOf(&["certificate", "anyone"])),
        ],
    ),
    kind("UpgradeTrustConfig", &[req("keys", TEXTS)]),
    kind(
        "UpgradeGateConfig",
        &[
            opt("timeout", Duration),
            opt(
                "probes",
                List(&Fields(&[
                    req("name", Text),
                    HTTP,
                    TCP,
                    opt("timeout", Duration),
                ])),
            ),
        ],
    ),
];
