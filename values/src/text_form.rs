//! Values that stand in documents and records as their text: `FromStr` reads the text that `Display` writes.

/// Implements `Serialize` and `Deserialize` by a value's text. An error of its parser is the error of the document. The crate that calls it
/// has `serde`.
#[macro_export]
macro_rules! serde_by_text {
    ($value:ty) => {
        impl serde::Serialize for $value {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> serde::Deserialize<'de> for $value {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = String::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}

pub(crate) use serde_by_text;
