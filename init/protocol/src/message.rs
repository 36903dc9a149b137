//! The messages of both directions.

use crate::packet::{Fields, ParseError};
use crate::{
    Blake3, BootId, Domain, End, FdName, Line, MAX_FINISH, Scope, StartReason, VERSION, Workloads,
};

/// A request of machined's. init answers each with one [`Reply`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// machined has started. Answered with [`Reply::Welcome`].
    Hello,
    /// This generation works: commit it and drop the previous one.
    Healthy {
        /// The boot id of the generation, which must be the running one's.
        boot_id: BootId,
    },
    /// This generation does not work and will not: give it up now instead of at its deadline.
    GiveUp {
        /// The reason, in one line; the generation that replaces this one receives it.
        reason: Line,
    },
    /// Start this image as the next generation. Goes with one descriptor, a sealed memfd.
    Next(NextGeneration),
    /// Keep the descriptor that comes with this packet beyond the end of machined.
    Keep {
        /// The name; a kept descriptor of the same name is replaced.
        name: FdName,
        /// How long to keep it.
        scope: Scope,
    },
    /// Close a kept descriptor.
    Drop {
        /// The name of the descriptor.
        name: FdName,
    },
    /// End the machine.
    End(End),
}

/// The image of the next generation, and how init changes to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NextGeneration {
    /// The digest of the image.
    pub blake3: Blake3,
    /// The version of the image, for people.
    pub version: Line,
    /// Time limit for [`Request::Healthy`], 1 to 3600 seconds.
    pub deadline: u32,
    /// Whether the workloads survive the change. An init without a workload domain ignores it.
    pub workloads: Workloads,
    /// Seconds that machined may take after the answer to finish its work, 0 to [`MAX_FINISH`]: the change begins when it has ended. An init
    /// whose welcome has no `finish` ignores it, and ends machined at once.
    pub finish: u32,
}

impl Request {
    /// The verb, which the key `to` of the answer repeats.
    pub const fn verb(&self) -> &'static str {
        match self {
            Self::Hello => "hello",
            Self::Healthy { .. } => "healthy",
            Self::GiveUp { .. } => "give-up",
            Self::Next { .. } => "next",
            Self::Keep { .. } => "keep",
            Self::Drop { .. } => "drop",
            Self::End(end) => end.as_str(),
        }
    }

    /// The message as a packet.
    pub fn encode(&self) -> Vec<u8> {
        let fields = match self {
            Self::Hello | Self::End(_) => String::new(),
            Self::Healthy { boot_id } => format!("boot-id {boot_id}\n"),
            Self::GiveUp { reason } => format!("reason {reason}\n"),
            Self::Next(next) => next.fields(),
            Self::Keep { name, scope } => format!("name {name}\nscope {}\n", scope.as_str()),
            Self::Drop { name } => format!("name {name}\n"),
        };
        packet(self.verb(), &fields)
    }

    /// Reads a packet from machined.
    pub fn parse(packet: &[u8]) -> Result<Self, ParseError> {
        let fields = Fields::parse(packet)?;
        Ok(match fields.verb {
            "hello" => Self::Hello,
            "healthy" => Self::Healthy {
                boot_id: fields.required("boot-id")?,
            },
            "give-up" => Self::GiveUp {
                reason: fields.required("reason")?,
            },
            "next" => Self::Next(NextGeneration {
                blake3: fields.required("blake3")?,
                version: fields.required("version")?,
                deadline: fields.number("deadline", 1..=3600)?,
                workloads: fields.optional("workloads")?.unwrap_or(Workloads::End),
                finish: match fields.has("finish") {
                    true => fields.number("finish", 0..=MAX_FINISH)?,
                    false => 0,
                },
            }),
            "keep" => Self::Keep {
                name: fields.required("name")?,
                scope: fields.required("scope")?,
            },
            "drop" => Self::Drop {
                name: fields.required("name")?,
            },
            verb => Self::End(verb.parse().map_err(|_| fields.unknown_verb())?),
        })
    }
}

impl NextGeneration {
    fn fields(&self) -> String {
        let mut fields = format!(
            "blake3 {}\nversion {}\ndeadline {}\n",
            self.blake3, self.version, self.deadline
        );
        if self.workloads == Workloads::Keep {
            fields.push_str("workloads keep\n");
        }
        if self.finish > 0 {
            fields.push_str(&format!("finish {}\n", self.finish));
        }
        fields
    }
}

/// A message of init's: an answer, or [`Reply::Exited`] at any time after the welcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// The answer to `hello`.
    Welcome(Welcome),
    /// The request is done, or has begun and cannot fail any more.
    Ok {
        /// The verb of the request.
        to: Line,
    },
    /// The request is refused; nothing has changed.
    Error {
        /// The verb of the request, `-` when it had none.
        to: Line,
        /// The code for programs: the word of an [`crate::ErrorCode`], or one that only a newer init knows.
        code: Line,
        /// The text for people.
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

/// The facts that machined receives when it starts. The descriptors of `kept` come with it, in the same order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// 1 at boot, counts up with every start of a generation.
    pub generation: u64,
    /// The boot id of this generation.
    pub boot_id: BootId,
    /// The boot id of the kernel.
    pub kernel_boot_id: BootId,
    /// Why machined was started.
    pub start: StartReason,
    /// The reason of the start, for every start that was not requested.
    pub cause: Option<Line>,
    /// The version that was given up, on a rollback.
    pub failed_version: Option<Line>,
    /// Seconds left to report `healthy`.
    pub deadline: u32,
    /// The state of the workload domain; none from an init that has none.
    pub workloads: Option<Domain>,
    /// Limit on [`NextGeneration::finish`]; none from an init that ends machined at once.
    pub finish: Option<u32>,
    /// The names of the kept descriptors, at most [`crate::MAX_KEPT`].
    pub kept: Vec<FdName>,
}

impl Welcome {
    /// The facts before the first generation: it starts with the kernel, and nothing is left from before.
    pub fn of_kernel(kernel_boot_id: BootId) -> Self {
        Self {
            generation: 0,
            boot_id: kernel_boot_id.clone(),
            kernel_boot_id,
            start: StartReason::Boot,
            cause: None,
            failed_version: None,
            deadline: 0,
            workloads: None,
            finish: Some(MAX_FINISH),
            kept: Vec::new(),
        }
    }

    fn fields(&self) -> String {
        let mut fields = format!(
            "generation {}\nboot-id {}\nkernel-boot-id {}\nstart {}\ndeadline {}\n",
            self.generation,
            self.boot_id,
            self.kernel_boot_id,
            self.start.as_str(),
            self.deadline
        );
        let names: Vec<&str> = self.kept.iter().map(FdName::as_str).collect();
        let names = (!names.is_empty()).then(|| names.join(" "));
        let finish = self.finish.map(|limit| limit.to_string());
        let optional = [
            ("cause", self.cause.as_ref().map(Line::as_str)),
            (
                "failed-version",
                self.failed_version.as_ref().map(Line::as_str),
            ),
            ("workloads", self.workloads.map(Domain::as_str)),
            ("finish", finish.as_deref()),
            ("kept", names.as_deref()),
        ];
        for (key, value) in optional {
            fields.extend(value.map(|value| format!("{key} {value}\n")));
        }
        fields
    }
}

impl Reply {
    /// The message as a packet.
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Self::Welcome(welcome) => packet("welcome", &welcome.fields()),
            Self::Ok { to } => packet("ok", &format!("to {to}\n")),
            Self::Error { to, code, text } => {
                packet("error", &format!("to {to}\ncode {code}\ntext {text}\n"))
            }
            Self::Exited { pid, status } => {
                packet("exited", &format!("pid {pid}\nstatus {status}\n"))
            }
        }
    }

    /// Reads a packet from init.
    pub fn parse(packet: &[u8]) -> Result<Self, ParseError> {
        let fields = Fields::parse(packet)?;
        Ok(match fields.verb {
            "welcome" => Self::Welcome(Welcome {
                generation: fields.required("generation")?,
                boot_id: fields.required("boot-id")?,
                kernel_boot_id: fields.required("kernel-boot-id")?,
                start: fields.required("start")?,
                cause: fields.optional("cause")?,
                failed_version: fields.optional("failed-version")?,
                deadline: fields.required("deadline")?,
                workloads: fields.optional("workloads")?,
                finish: fields.optional("finish")?,
                kept: fields.list("kept")?,
            }),
            "ok" => Self::Ok {
                to: fields.required("to")?,
            },
            "error" => Self::Error {
                to: fields.required("to")?,
                code: fields.required("code")?,
                text: fields.required("text")?,
            },
            "exited" => Self::Exited {
                pid: fields.required("pid")?,
                status: fields.required("status")?,
            },
            _ => return Err(fields.unknown_verb()),
        })
    }
}

fn packet(verb: &str, fields: &str) -> Vec<u8> {
    format!("instar {VERSION} {verb}\n{fields}").into_bytes()
}
