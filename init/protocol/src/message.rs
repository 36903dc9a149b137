//! The messages of both directions.

use crate::error::{ErrorCode, InvalidValue, ParseError, Problem};
use crate::packet::{Fields, Writer};
use crate::{Blake3, BootId, Deadline, FdName, Line, Scope};

/// machined asks, init answers each with one [`Reply`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// I am here. Answered with [`Reply::Welcome`].
    Hello,
    /// This generation works: commit it and drop the previous one.
    Healthy {
        /// Which generation: its own boot id.
        boot_id: BootId,
    },
    /// This generation does not work and cannot: give it up now instead of at its deadline.
    GiveUp {
        /// Why, in one line; the generation that comes instead is told.
        reason: Line,
    },
    /// Start this image as the next generation. Goes with one descriptor, a sealed memfd.
    Next {
        /// What the image must hash to.
        blake3: Blake3,
        /// Its version, for people.
        version: Line,
        /// The time that it gets to report [`Request::Healthy`].
        deadline: Deadline,
    },
    /// Keep the descriptor that goes with this, over my own death.
    Keep {
        /// Replaces a kept one of the same name.
        name: FdName,
        /// How long to keep it.
        scope: Scope,
    },
    /// Let a kept descriptor go.
    Drop {
        /// Which.
        name: FdName,
    },
    /// Restart the machine.
    Reboot,
    /// Power the machine off.
    Poweroff,
    /// Stop the machine without powering it off.
    Halt,
    /// Start the kernel that was loaded with kexec.
    Kexec,
}

impl Request {
    /// The verb, as the answer's `to` names it.
    pub const fn verb(&self) -> &'static str {
        match self {
            Self::Hello => "hello",
            Self::Healthy { .. } => "healthy",
            Self::GiveUp { .. } => "give-up",
            Self::Next { .. } => "next",
            Self::Keep { .. } => "keep",
            Self::Drop { .. } => "drop",
            Self::Reboot => "reboot",
            Self::Poweroff => "poweroff",
            Self::Halt => "halt",
            Self::Kexec => "kexec",
        }
    }

    /// How many descriptors go with the message.
    pub const fn descriptors(&self) -> usize {
        match self {
            Self::Next { .. } | Self::Keep { .. } => 1,
            _ => 0,
        }
    }

    /// The packet.
    pub fn encode(&self) -> Vec<u8> {
        let packet = Writer::new(self.verb());
        match self {
            Self::Healthy { boot_id } => packet.field("boot-id", boot_id),
            Self::GiveUp { reason } => packet.field("reason", reason),
            Self::Next {
                blake3,
                version,
                deadline,
            } => packet
                .field("blake3", blake3)
                .field("version", version)
                .field("deadline", deadline),
            Self::Keep { name, scope } => packet.field("name", name).field("scope", scope.as_str()),
            Self::Drop { name } => packet.field("name", name),
            Self::Hello | Self::Reboot | Self::Poweroff | Self::Halt | Self::Kexec => packet,
        }
        .finish()
    }

    /// Reads a packet of machined's.
    pub fn parse(packet: &[u8]) -> Result<Self, ParseError> {
        let fields = Fields::parse(packet)?;
        Ok(match fields.verb() {
            "hello" => Self::Hello,
            "give-up" => Self::GiveUp {
                reason: fields.required("reason")?,
            },
            "healthy" => Self::Healthy {
                boot_id: fields.required("boot-id")?,
            },
            "next" => Self::Next {
                blake3: fields.required("blake3")?,
                version: fields.required("version")?,
                deadline: fields.required("deadline")?,
            },
            "keep" => Self::Keep {
                name: fields.required("name")?,
                scope: fields.required("scope")?,
            },
            "drop" => Self::Drop {
                name: fields.required("name")?,
            },
            "reboot" => Self::Reboot,
            "poweroff" => Self::Poweroff,
            "halt" => Self::Halt,
            "kexec" => Self::Kexec,
            _ => return Err(fields.problem(Problem::UnknownVerb)),
        })
    }
}

/// init's messages: the answers, and [`Reply::Exited`] at any time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// To `hello`.
    Welcome(Welcome),
    /// Done, or begun where it cannot fail any more.
    Ok {
        /// The verb of the request.
        to: Line,
    },
    /// Refused; nothing has changed.
    Error {
        /// The verb of the request, `-` when it had none.
        to: Line,
        /// For programs.
        code: ErrorCode,
        /// For people.
        text: Line,
    },
    /// An orphan of the generation ended and init reaped it.
    Exited {
        /// Its process id.
        pid: i32,
        /// The raw status, as `wait` gives it.
        status: i32,
    },
}

/// What machined is told when it starts. The descriptors of `kept` go with it, in that order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// 1 at boot, counts up with every start of a generation.
    pub generation: u64,
    /// This generation's.
    pub boot_id: BootId,
    /// The kernel's own.
    pub kernel_boot_id: BootId,
    /// Why machined was started.
    pub start: StartReason,
    /// Seconds left to report `healthy`.
    pub deadline: u32,
    /// The names of the kept descriptors, at most [`crate::MAX_KEPT`].
    pub kept: Vec<FdName>,
}

/// Why machined was started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StartReason {
    /// The first start since the kernel's.
    Boot,
    /// An upgrade.
    Next,
    /// The previous generation is back, because the next one failed.
    Rollback {
        /// How it failed.
        cause: Line,
        /// The version that was given up.
        failed_version: Line,
    },
    /// The same image again, in a new generation.
    Fresh {
        /// What happened to the old one.
        cause: Line,
    },
    /// machined alone, in the same generation.
    Restart {
        /// What happened to the old machined.
        cause: Line,
    },
}

impl StartReason {
    /// The word for it in the message.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Boot => "boot",
            Self::Next => "next",
            Self::Rollback { .. } => "rollback",
            Self::Fresh { .. } => "fresh",
            Self::Restart { .. } => "restart",
        }
    }

    /// Why, for every start that was not asked for.
    pub const fn cause(&self) -> Option<&Line> {
        match self {
            Self::Boot | Self::Next => None,
            Self::Rollback { cause, .. } | Self::Fresh { cause } | Self::Restart { cause } => {
                Some(cause)
            }
        }
    }

    /// The version that was given up, on a rollback.
    pub const fn failed_version(&self) -> Option<&Line> {
        match self {
            Self::Rollback { failed_version, .. } => Some(failed_version),
            _ => None,
        }
    }

    fn read(fields: &Fields<'_>) -> Result<Self, ParseError> {
        Ok(match fields.required::<Line>("start")?.as_str() {
            "boot" => Self::Boot,
            "next" => Self::Next,
            "rollback" => Self::Rollback {
                cause: fields.required("cause")?,
                failed_version: fields.required("failed-version")?,
            },
            "fresh" => Self::Fresh {
                cause: fields.required("cause")?,
            },
            "restart" => Self::Restart {
                cause: fields.required("cause")?,
            },
            _ => {
                return Err(fields.problem(Problem::Invalid(
                    "start",
                    InvalidValue("is not a known reason"),
                )));
            }
        })
    }
}

impl Reply {
    /// The packet.
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Self::Welcome(welcome) => {
                let names: Vec<&str> = welcome
                    .kept
                    .iter()
                    .take(crate::MAX_KEPT)
                    .map(FdName::as_str)
                    .collect();
                Writer::new("welcome")
                    .field("generation", welcome.generation)
                    .field("boot-id", &welcome.boot_id)
                    .field("kernel-boot-id", &welcome.kernel_boot_id)
                    .field("start", welcome.start.as_str())
                    .optional("cause", welcome.start.cause())
                    .optional("failed-version", welcome.start.failed_version())
                    .field("deadline", welcome.deadline)
                    .optional("kept", (!names.is_empty()).then(|| names.join(" ")))
            }
            Self::Ok { to } => Writer::new("ok").field("to", to),
            Self::Error { to, code, text } => Writer::new("error")
                .field("to", to)
                .field("code", code)
                .field("text", text),
            Self::Exited { pid, status } => Writer::new("exited")
                .field("pid", pid)
                .field("status", status),
        }
        .finish()
    }

    /// Reads a packet of init's.
    pub fn parse(packet: &[u8]) -> Result<Self, ParseError> {
        let fields = Fields::parse(packet)?;
        Ok(match fields.verb() {
            "welcome" => Self::Welcome(Welcome {
                generation: fields.number("generation")?,
                boot_id: fields.required("boot-id")?,
                kernel_boot_id: fields.required("kernel-boot-id")?,
                start: StartReason::read(&fields)?,
                deadline: fields.number("deadline")?,
                kept: fields.list("kept")?,
            }),
            "ok" => Self::Ok {
                to: fields.required("to")?,
            },
            "error" => Self::Error {
                to: fields.required("to")?,
                code: ErrorCode::from_line(fields.required("code")?),
                text: fields.required("text")?,
            },
            "exited" => Self::Exited {
                pid: fields.number("pid")?,
                status: fields.number("status")?,
            },
            _ => return Err(fields.problem(Problem::UnknownVerb)),
        })
    }
}
