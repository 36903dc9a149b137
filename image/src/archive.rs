//! A tree as a tar stream, for image layers and for mksquashfs.

use std::io::{self, Write};

use tar::{Builder, EntryType, Header};

use crate::tree::{Content, Tree};

/// Writes the tree in the order of its paths, every owner root, every time 0.
///
/// # Errors
/// A failing `out`, or a name that tar cannot hold.
pub fn write(tree: &Tree, out: impl Write) -> io::Result<()> {
    let mut tar = Builder::new(out);
    for (path, node) in tree.iter() {
        let mut header = Header::new_gnu();
        header.set_mode(node.mode);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        header.set_size(0);
        match &node.content {
            Content::Directory => {
                header.set_entry_type(EntryType::Directory);
                tar.append_data(&mut header, format!("{path}/"), io::empty())?;
            }
            Content::File(bytes) => {
                header.set_entry_type(EntryType::Regular);
                header.set_size(bytes.len() as u64);
                tar.append_data(&mut header, path, &bytes[..])?;
            }
            Content::Symlink(target) => {
                header.set_entry_type(EntryType::Symlink);
                tar.append_link(&mut header, path, target)?;
            }
            Content::CharacterDevice { major, minor } => {
                header.set_entry_type(EntryType::Char);
                header.set_device_major(*major)?;
                header.set_device_minor(*minor)?;
                tar.append_data(&mut header, path, io::empty())?;
            }
        }
    }
    tar.into_inner()?.flush()
}
