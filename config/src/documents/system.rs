//! The machine itself: install, time, kernel settings, files, logs.

use super::super::shape::{Kind, Shape::*, TEXTS, kind, opt, req};

pub(super) const KINDS: &[Kind] = &[
    kind("EnvironmentConfig", &[opt("variables", TextMap)]),
    kind(
        "EtcFileConfig",
        &[req("name", Text), opt("mode", Int), opt("contents", Text)],
    ),
    kind("EventSinkConfig", &[opt("endpoint", Text)]),
    kind(
        "KernelModuleConfig",
        &[req("name", Text), opt("parameters", TEXTS)],
    ),
    kind(
        "KmsgLogConfig",
        &[opt("name", Text), opt("url", Url(&["tcp", "udp", "tls"]))],
    ),
    kind(
        "OOMConfig",
        &[
            opt("triggerExpression", Text),
            opt("cgroupRankingExpression", Text),
            opt("strictCgroupClassOrdering", Bool),
            opt("sampleInterval", Duration),
        ],
    ),
    kind(
        "PCIDriverRebindConfig",
        &[req("name", Text), req("targetDriver", Text)],
    ),
    kind("SecurityProfileConfig", &[opt("workloadIsolation", Bool)]),
    kind(
        "SideroLinkConfig",
        &[
            opt("apiUrl", Url(&["https", "grpc"])),
            opt("uniqueToken", Text),
        ],
    ),
    kind("SysctlConfig", &[opt("params", TextMap)]),
    kind("SysfsConfig", &[opt("params", TextMap)]),
    kind(
        "TimeSyncConfig",
        &[
            opt("enabled", Bool),
            opt("bootTimeout", Duration),
            opt("ntp", Fields(&[opt("servers", TEXTS), opt("useNTS", Bool)])),
            opt("ptp", Fields(&[opt("devices", TEXTS)])),
        ],
    ),
    kind(
        "TrustedRootsConfig",
        &[req("name", Text), opt("certificates", Text)],
    ),
    kind("UdevRulesConfig", &[opt("rules", TEXTS)]),
    kind(
        "UnattendedInstallConfig",
        &[
            opt("reboot", Bool),
            opt("installer", Fields(&[opt("image", Text)])),
            opt(
                "provisioning",
                Fields(&[
                    opt("diskSelector", Fields(&[opt("match", Text)])),
                    opt("wipe", Bool),
                ]),
            ),
        ],
    ),
    kind(
        "WatchdogTimerConfig",
        &[opt("device", Text), opt("timeout", Duration)],
    ),
];
