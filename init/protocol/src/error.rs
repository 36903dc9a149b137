//! What can be wrong with a message, and the codes that init answers with.

use crate::{Line, MAX_PACKET, VERSION};
use std::fmt;

/// Why a text is not a valid value. It completes a sentence that starts with the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidValue(pub(crate) &'static str);

impl fmt::Display for InvalidValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for InvalidValue {}

/// A packet that is not a message of this protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseError {
    /// The verb, as far as the packet had one: what `to` of the answer names.
    pub verb: Option<Line>,
    /// What is wrong with it.
    pub problem: Problem,
}

/// What is wrong with a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Problem {
    /// More bytes than a packet may have.
    TooLong(usize),
    /// Not UTF-8; valid up to this byte.
    NotUtf8(usize),
    /// The first line is not `instar VERSION VERB`.
    NoHeader,
    /// A version of the protocol that is not spoken here.
    OtherVersion(Line),
    /// A verb that does not exist in this direction.
    UnknownVerb,
    /// A line that is not `key value`; lines count from 1.
    NotKeyValue(usize),
    /// The same key twice.
    Duplicate(Line),
    /// The verb needs this key.
    Missing(&'static str),
    /// The value of a key is not valid.
    Invalid(&'static str, InvalidValue),
}

impl ParseError {
    /// The code to answer with.
    pub fn code(&self) -> ErrorCode {
        match self.problem {
            Problem::OtherVersion(_) => ErrorCode::OtherVersion,
            Problem::UnknownVerb => ErrorCode::UnknownVerb,
            _ => ErrorCode::BadMessage,
        }
    }
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.problem {
            Problem::TooLong(_) => write!(f, "more than {MAX_PACKET} bytes"),
            Problem::NotUtf8(at) => write!(f, "not UTF-8 at byte {at}"),
            Problem::NoHeader => write!(f, "the first line is not 'instar {VERSION} VERB'"),
            Problem::OtherVersion(found) => {
                write!(f, "version '{found}', but only {VERSION} is spoken here")
            }
            Problem::UnknownVerb => f.write_str("unknown verb"),
            Problem::NotKeyValue(line) => write!(f, "line {line} is not 'key value'"),
            Problem::Duplicate(key) => write!(f, "the key '{key}' is given twice"),
            Problem::Missing(key) => write!(f, "the key '{key}' is missing"),
            Problem::Invalid(key, why) => write!(f, "'{key}' {why}"),
        }
    }
}

impl std::error::Error for ParseError {}

macro_rules! error_codes {
    ($($(#[$doc:meta])* $name:ident = $word:literal,)*) => {
        /// Why init refused a request, for programs; the text beside it is for people.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum ErrorCode {
            $($(#[$doc])* $name,)*
            /// A code that a newer init knows.
            Other(Line),
        }

        impl ErrorCode {
            pub(crate) fn from_line(line: Line) -> Self {
                match line.as_str() {
                    $($word => Self::$name,)*
                    _ => Self::Other(line),
                }
            }
        }

        impl fmt::Display for ErrorCode {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    $(Self::$name => f.write_str($word),)*
                    Self::Other(line) => line.fmt(f),
                }
            }
        }
    };
}

error_codes! {
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
