//! Containers, and the sources of their images.

use super::super::shape::{Kind, Shape::*, TEXTS, kind, opt, req};

pub(super) const KINDS: &[Kind] = &[
    kind(
        "ContainerConfig",
        &[
            req("name", Text),
            req("image", Text),
            opt("entrypoint", TEXTS),
            opt("args", TEXTS),
            opt("workingDir", Text),
            opt("runAs", Fields(&[opt("uid", Int), opt("gid", Int)])),
            opt("environment", TEXTS),
            opt(
                "mounts",
                List(&Fields(&[
                    opt(
                        "userVolume",
                        Fields(&[
                            req("name", Text),
                            req("destination", Text),
                            opt("options", TEXTS),
                        ]),
                    ),
                    opt(
                        "tmpfs",
                        Fields(&[
                            req("destination", Text),
                            opt("size", Text),
                            opt("options", TEXTS),
                        ]),
                    ),
                    opt(
                        "hostPath",
                        Fields(&[
                            req("source", Text),
                            req("destination", Text),
                            opt("options", TEXTS),
                        ]),
                    ),
                ])),
            ),
            opt(
                "security",
                Fields(&[
                    opt("profile", OneOf(&["restricted", "privileged"])),
                    opt(
                        "capabilities",
                        Fields(&[opt("add", TEXTS), opt("drop", TEXTS)]),
                    ),
                    opt("machinedAccess", Bool),
                ]),
            ),
            opt("network", Fields(&[opt("mode", OneOf(&["none", "host"]))])),
            opt(
                "resources",
                Fields(&[opt(
                    "limits",
                    Fields(&[opt("cpu", Text), opt("memory", Text)]),
                )]),
            ),
            opt(
                "dependsOn",
                Fields(&[
                    opt("paths", TEXTS),
                    opt(
                        "networks",
                        List(&OneOf(&[
                            "addresses",
                            "connectivity",
                            "hostname",
                            "etcfiles",
                        ])),
                    ),
                    opt("time", Bool),
                    opt("containers", TEXTS),
                ]),
            ),
        ],
    ),
    kind("CRIBaseRuntimeSpecConfig", &[opt("overrides", Opaque)]),
    kind(
        "CRICustomizationConfig",
        &[req("name", Text), opt("content", Text)],
    ),
    kind(
        "ImageCacheConfig",
        &[opt("local", Fields(&[opt("enabled", Bool)]))],
    ),
    kind(
        "ImageVerificationConfig",
        &[opt(
            "rules",
            List(&Fields(&[
                opt("image", Text),
                opt("skip", Bool),
                opt("deny", Bool),
                opt(
                    "keyless",
                    Fields(&[
                        opt("issuer", Text),
                        opt("subject", Text),
                        opt("subjectRegex", Text),
                    ]),
                ),
                opt("publicKey", Fields(&[opt("certificate", Text)])),
            ])),
        )],
    ),
    kind(
        "RegistryAuthConfig",
        &[
            req("name", Text),
            opt("username", Text),
            opt("password", Text),
            opt("auth", Text),
            opt("identityToken", Text),
        ],
    ),
    kind(
        "RegistryMirrorConfig",
        &[
            req("name", Text),
            opt(
                "endpoints",
                List(&Fields(&[
                    req("url", Url(&["http", "https"])),
                    opt("overridePath", Bool),
                ])),
            ),
            opt("skipFallback", Bool),
        ],
    ),
    kind(
        "RegistryTLSConfig",
        &[
            req("name", Text),
            opt(
                "clientIdentity",
                Fields(&[opt("cert", Text), opt("key", Text)]),
            ),
            opt("ca", Text),
            opt("insecureSkipVerify", Bool),
        ],
    ),
    kind(
        "ExtensionServiceConfig",
        &[
            req("name", Text),
            opt(
                "configFiles",
                List(&Fields(&[opt("content", Text), opt("mountPath", Text)])),
            ),
            opt("environment", TEXTS),
        ],
    ),
];
