//! The values in messages. One that exists is valid.

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

/// Types that hold a text for which a condition is true.
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
    /// Makes a line of any text: control characters become spaces, what is too long is cut off.
    pub fn lossy(text: &str) -> Self {
        let mut line = text.replace(char::is_control, " ");
        line.truncate(line.floor_char_boundary(MAX_LINE));
        match line.trim() {
            "" => Self("-".to_owned()),
            text => Self(text.to_owned()),
        }
    }
}

/// Types of which every value has a word.
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
            /// The word for it in a message.
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

    /// What becomes of the workloads when the next generation starts.
    Workloads or "neither 'end' nor 'keep'" {
        /// They end with the generation.
        End = "end",
        /// They live through the change, and through the way back if the next generation fails.
        Keep = "keep",
    }

    /// The workload domain, as a generation finds it.
    Domain or "neither 'new' nor 'kept'" {
        /// No process of it is from an earlier generation. What is on its tmpfs may be.
        New = "new",
        /// What was in it lives.
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
        /// The kernel that was loaded for it starts.
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
        /// A verb that this init does not know.
        UnknownVerb = "unknown-verb",
        /// Not the number of descriptors that the verb needs.
        Descriptors = "descriptors",
        /// `healthy` with a boot id that is not this generation's.
        OtherBootId = "other-boot-id",
        /// Not possible in this state, like `next` before `healthy`.
        WrongState = "wrong-state",
        /// The image is not a memfd that nobody can change any more.
        NotSealed = "not-sealed",
        /// The image has another digest than the message says.
        WrongDigest = "wrong-digest",
        /// The image cannot be mounted as a squashfs.
        NotMountable = "not-mountable",
        /// 64 descriptors are kept already.
        TooManyKept = "too-many-kept",
        /// No descriptor is kept under this name.
        NotKept = "not-kept",
        /// The kernel refused what the verb needs, like `kexec` without a loaded kernel.
        Kernel = "kernel",
    }
}
