//! Files that name the nodes of a fleet, for `instarctl fleet`.

use std::path::PathBuf;

use anyhow::Result;

use crate::scratch::Scratch;

/// Writes `fleet.yaml` with these nodes: names and addresses.
pub fn fleet_file<Name, Address>(
    scratch: &Scratch,
    nodes: impl IntoIterator<Item = (Name, Address)>,
) -> Result<PathBuf>
where
    Name: AsRef<str>,
    Address: AsRef<str>,
{
    let mut text = String::from("nodes:\n");
    for (name, address) in nodes {
        let (name, address) = (name.as_ref(), address.as_ref());
        text.push_str(&format!("  - {{name: {name}, address: \"{address}\"}}\n"));
    }
    scratch.write("fleet.yaml", text)
}
