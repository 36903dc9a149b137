//! The values in messages. Only valid ones can be made.

use crate::MAX_LINE;
use std::fmt;
use std::str::FromStr;

/// Why a text is not a valid value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidValue(&'static str);

impl fmt::Display for InvalidValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for InvalidValue {}

/// Defines types that hold a text with a condition.
macro_rules! texts {
    ($($(#[$doc:meta])* $name:ident if $valid:expr, or $wrong:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub struct $name(String);

        impl $name {
            /// The text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = InvalidValue;

            fn from_str(text: &str) -> Result<Self, InvalidValue> {
                let valid: fn(&str) -> bool = $valid;
                let made = valid(text).then(|| Self(text.to_owned()));
                made.ok_or(InvalidValue($wrong))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    )*};
}

texts! {
    /// One line of text of at most [`MAX_LINE`] bytes, without control characters.
    Line if |text| (1..=MAX_LINE).contains(&text.len()) && !text.contains(char::is_control),
        or "not 1 to 512 bytes without control characters";
    /// The id of a boot, of the kernel or of a generation: a UUID.
    BootId if is_uuid, or "not a lower-case UUID";
    /// A BLAKE3 digest.
    Blake3 if |text| text.len() == 64 && text.bytes().all(is_hex),
        or "not 64 lower-case hex digits";
    /// The name of a kept descriptor.
    FdName if |text| (1..=32).contains(&text.len())
        && text.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'.' | b'-')),
        or "not 1 to 32 of a-z, 0-9, '.' and '-'";
}

fn is_hex(byte: u8) -> bool {
    matches!(byte, b'0'..=b'9' | b'a'..=b'f')
}

fn is_uuid(text: &str) -> bool {
    let parts: Vec<&str> = text.split('-').collect();
    parts.iter().map(|part| part.len()).eq([8, 4, 4, 4, 12])
        && parts.iter().all(|part| part.bytes().all(is_hex))
}

impl Line {
    /// Makes a line from any text: control characters become spaces, the text is cut off at the limit.
    pub fn lossy(text: &str) -> Self {
        let mut line = text.replace(char::is_control, " ");
        line.truncate(line.floor_char_boundary(MAX_LINE));
        match line.trim() {
            "" => Self("-".to_owned()),
            text => Self(text.to_owned()),
        }
    }
}

/// Defines types each of whose values has a word.
macro_rules! words {
    ($($(#[$doc:meta])* $name:ident or $wrong:literal {
        $($(#[$item_doc:meta])* $item:ident = $word:literal,)*
    })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name {
            $($(#[$item_doc])* $item,)*
        }

        impl $name {
            /// The word of the value in a message.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$item => $word,)*
                }
            }
        }

        impl FromStr for $name {
            type Err = InvalidValue;

            fn from_str(text: &str) -> Result<Self, InvalidValue> {
                match text {
                    $($word => Ok(Self::$item),)*
                    _ => Err(InvalidValue($wrong)),
                }
            }
        }
    )*};
}

words! {
    /// How long init keeps a descriptor.
    Scope or "neither 'generation', 'workloads' nor 'machine'" {
        /// Over restarts of machined, until the generation ends.
        Generation = "generation",
        /// Over generations, until the workloads end.
        Workloads = "workloads",
        /// Over generations, until the kernel ends.
        Machine = "machine",
    }

    /// The fate of the workloads when the next generation starts.
    Workloads or "neither 'end' nor 'keep'" {
        /// They end with the generation.
        End = "end",
        /// They survive the change, and the change back if the next generation fails.
        Keep = "keep",
    }

    /// The state of the workload domain when a generation starts.
    Domain or "neither 'new' nor 'kept'" {
        /// New: none of its processes is from an earlier generation. Files on its tmpfs may be.
        New = "new",
        /// Kept: its processes and files are those of the generation before.
        Kept = "kept",
    }

    /// How the machine ends.
    End or "not a way to end the machine" {
        /// The machine restarts.
        Reboot = "reboot",
        /// The power goes off.
        PowerOff = "poweroff",
        /// The machine stands still.
        Halt = "halt",
        /// The kernel that was loaded for kexec starts.
        Kexec = "kexec",
    }

    /// Why machined was started.
    StartReason or "not a reason that is known here" {
        /// The first start since the kernel's.
        Boot = "boot",
        /// An upgrade.
        Next = "next",
        /// The previous generation is back, because the next one failed.
        Rollback = "rollback",
        /// The same image again, in a new generation.
        Fresh = "fresh",
        /// machined alone, in the same generation.
        Restart = "restart",
    }

    /// Why init refuses a request, for programs; the text beside it is for people.
    ErrorCode or "not a code that is known here" {
        /// The message is not well formed, or lacks a key, or a value is not valid.
        BadMessage = "bad-message",
        /// Another version of the protocol.
        OtherVersion = "other-version",
        /// The packet has another number of descriptors than the verb needs.
        UnknownVerb = "unknown-verb",
        /// Not the number of descriptors that the verb needs.
        Descriptors = "descriptors",
        /// Not possible in this state, for example `next` before `healthy`.
        OtherBootId = "other-boot-id",
        /// Not possible in this state, like `next` before `healthy`.
        WrongState = "wrong-state",
        /// The image is not a memfd with all seals, so it could still be changed.
        NotSealed = "not-sealed",
        /// The image's digest is not the one in the message.
        WrongDigest = "wrong-digest",
        /// The image cannot be mounted as a squashfs.
        NotMountable = "not-mountable",
        /// 64 descriptors are kept already.
        TooManyKept = "too-many-kept",
        /// No descriptor is kept under this name.
        NotKept = "not-kept",
        /// The kernel refused a step, for example `kexec` without a loaded kernel.
        Kernel = "kernel",
    }
}
