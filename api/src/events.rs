//! Payloads of the event stream, packed as clients expect them.
//!
//! `Event.data` is an `Any` whose type URL starts with [`TYPE_URL_PREFIX`] instead of the usual `type.googleapis.com/`.
//! Trackers of other clients give up on a URL that they don't know, so [`EventPayload`] lists all nine and a node sends no others.
//! The first message of a stream is a hello: an `Any` with nothing in it.

use prost::Message;
use prost_types::Any;

use crate::machine::machine_status_event::MachineStage;
use crate::machine::{
    AddressEvent, ConfigLoadErrorEvent, ConfigValidationErrorEvent, Event, MachineStatusEvent,
    PhaseEvent, RestartEvent, SequenceEvent, ServiceStateEvent, TaskEvent,
};

/// The prefix of every payload's type URL; the message's name follows.
pub const TYPE_URL_PREFIX: &str = "talos/runtime/machine.";

/// Why a payload cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum UnpackError {
    /// The type is not known: a newer node may send more types than this client knows.
    #[error("unknown event type {0:?}")]
    UnknownType(String),
    /// The bytes are not a valid message.
    #[error("malformed event of type {type_url:?}")]
    Malformed {
        /// The type URL.
        type_url: String,
        /// The error of the decoder.
        source: prost::DecodeError,
    },
}

/// Declares the enum and both directions from one list, so that they cannot disagree.
macro_rules! payloads {
    ($($(#[$doc:meta])* $variant:ident($message:ident)),+ $(,)?) => {
        /// The payload of one event.
        #[derive(Clone, Debug, PartialEq)]
        pub enum EventPayload {
            $($(#[$doc])* $variant($message)),+
        }

        impl EventPayload {
            /// The name of the payload's message, without its package.
            pub fn name(&self) -> &'static str {
                match self {
                    $(Self::$variant(_) => stringify!($message)),+
                }
            }

            /// The payload as an `Any` for `Event.data`.
            pub fn pack(&self) -> Any {
                let value = match self {
                    $(Self::$variant(message) => message.encode_to_vec()),+
                };
                Any { type_url: format!("{TYPE_URL_PREFIX}{}", self.name()), value }
            }

            /// The payload in `Event.data`, or `None` for a hello.
            ///
            /// # Errors
            /// The type is not one of the nine, or its bytes are broken.
            pub fn unpack(any: &Any) -> Result<Option<Self>, UnpackError> {
                if any.type_url.is_empty() {
                    return Ok(None);
                }
                let decoded = match any.type_url.strip_prefix(TYPE_URL_PREFIX) {
                    $(Some(stringify!($message)) => $message::decode(any.value.as_slice()).map(Self::$variant),)+
                    _ => return Err(UnpackError::UnknownType(any.type_url.clone())),
                };
                decoded
                    .map(Some)
                    .map_err(|source| UnpackError::Malformed { type_url: any.type_url.clone(), source })
            }
        }

        $(impl From<$message> for EventPayload {
            fn from(message: $message) -> Self {
                Self::$variant(message)
            }
        })+
    };
}

payloads! {
    /// A sequence started, stopped or failed.
    Sequence(SequenceEvent),
    /// A phase of a sequence started or stopped.
    Phase(PhaseEvent),
    /// A task of a phase started or stopped.
    Task(TaskEvent),
    /// A service changed its state.
    ServiceState(ServiceStateEvent),
    /// The machine changed its stage, or the conditions that it waits for.
    MachineStatus(MachineStatusEvent),
    /// The machine is about to call reboot(2).
    Restart(RestartEvent),
    /// The machine config could not be loaded.
    ConfigLoadError(ConfigLoadErrorEvent),
    /// The machine config is not valid.
    ConfigValidationError(ConfigValidationErrorEvent),
    /// Hostname or addresses changed.
    Address(AddressEvent),
}

/// A machine's stage in words, for people.
pub fn stage_in_words(stage: MachineStage) -> &'static str {
    match stage {
        MachineStage::Unknown => "unknown",
        MachineStage::Booting => "booting",
        MachineStage::Installing => "installing",
        MachineStage::Maintenance => "maintenance",
        MachineStage::Running => "running",
        MachineStage::Rebooting => "rebooting",
        MachineStage::ShuttingDown => "shutting down",
        MachineStage::Resetting => "resetting",
        MachineStage::Upgrading => "upgrading",
    }
}

/// The message that opens a stream of events.
pub fn hello() -> Event {
    Event {
        data: Some(Any::default()),
        ..Event::default()
    }
}
