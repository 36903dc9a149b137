//! Reads fields of records that another version may have written in another form.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};

/// Reads a field whose loss does no harm. If another version has given it another form it is empty: the rest of the record must not be lost
/// over that.
///
/// # Errors
/// It is no JSON.
pub(super) fn if_readable<'de, T: DeserializeOwned + Default, D: Deserializer<'de>>(
    from: D,
) -> Result<T, D::Error> {
    let given = serde_json::Value::deserialize(from)?;
    // The error could show parts of a key.
    Ok(serde_json::from_value(given).unwrap_or_else(|_| {
        let part = std::any::type_name::<T>();
        tracing::warn!(
            "a record has a part in the form of another version, which is left out: {part}"
        );
        T::default()
    }))
}
