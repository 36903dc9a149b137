//! `list`: files of the node.

use instar_api::machine::list_request::Type;
use instar_api::machine::{FileInfo, ListRequest};
use instar_client::{Failure, Node};
use serde_json::json;

use crate::cli::{FileType, Global, List};
use crate::each_node::each_node;
use crate::unread_files::UnreadFiles;

pub(super) async fn run(global: &Global, arguments: &List) -> Result<(), Failure> {
    let request = ListRequest {
        root: arguments.path.clone(),
        recurse: arguments.recurse || arguments.depth.is_some(),
        recursion_depth: match (arguments.recurse, arguments.depth) {
            (_, Some(levels)) => levels.into(),
            (true, None) => -1,
            (false, None) => 1,
        },
        types: arguments
            .types
            .iter()
            .map(|kind| kind_of(*kind).into())
            .collect(),
        report_xattrs: arguments.long,
    };
    let mut unread = UnreadFiles::default();
    each_node(global, async |node| {
        list(global, node, &request, arguments.long, &mut unread).await
    })
    .await?;
    unread.end()
}

fn kind_of(kind: FileType) -> Type {
    match kind {
        FileType::F => Type::Regular,
        FileType::D => Type::Directory,
        FileType::L => Type::Symlink,
    }
}

/// Shows each file as it comes.
async fn list(
    global: &Global,
    node: &Node,
    request: &ListRequest,
    long: bool,
    unread: &mut UnreadFiles,
) -> Result<(), Failure> {
    let doing = format!("cannot list {}", request.root);
    let explain = |status| node.explain(&doing, status);
    let reply = node.machine().list(node.request(request.clone())).await;
    let mut stream = reply.map_err(explain)?.into_inner();
    while let Some(info) = stream.message().await.map_err(explain)? {
        if unread.tell(node, &info.error) {
            continue;
        }
        global.output.show(
            || if long { long_line(&info) } else { info.relative_name.clone() },
            || {
                json!({
                    "node": node.name(),
                    "name": info.name,
                    "relative_name": info.relative_name,
                    "mode": mode(info.mode),
                    "uid": info.uid,
                    "gid": info.gid,
                    "size": info.size,
                    "modified": modified(&info),
                    "link": info.link,
                    "attributes": info.xattrs.iter().map(|attribute| &attribute.name).collect::<Vec<_>>(),
                })
            },
        )?;
    }
    Ok(())
}

fn long_line(info: &FileInfo) -> String {
    let mut line = format!(
        "{}  {:>5} {:>5}  {:>12}  {}  {}",
        mode(info.mode),
        info.uid,
        info.gid,
        info.size,
        modified(info),
        info.relative_name
    );
    if !info.link.is_empty() {
        line.push_str(&format!(" -> {}", info.link));
    }
    line
}

fn modified(info: &FileInfo) -> String {
    let at = prost_types::Timestamp {
        seconds: info.modified,
        nanos: 0,
    };
    crate::output::time(Some(&at))
}

/// The mode as `ls -l` shows it, from the bits of Go's `fs.FileMode`.
fn mode(bits: u32) -> String {
    let is = |bit: u32| bits & 1 << bit != 0;
    let kind = match () {
        () if is(31) => 'd',
        () if is(27) => 'l',
        () if is(21) => 'c',
        () if is(26) => 'b',
        () if is(25) => 'p',
        () if is(24) => 's',
        () => '-',
    };
    let mut text = String::from(kind);
    for (shift, special, letter) in [(6, is(23), 's'), (3, is(22), 's'), (0, is(20), 't')] {
        let digit = bits >> shift & 7;
        text.push(if digit & 4 != 0 { 'r' } else { '-' });
        text.push(if digit & 2 != 0 { 'w' } else { '-' });
        text.push(match (special, digit & 1 != 0) {
            (true, true) => letter,
            (true, false) => letter.to_ascii_uppercase(),
            (false, true) => 'x',
            (false, false) => '-',
        });
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_look_like_those_of_ls() {
        assert_eq!(mode(1 << 31 | 1 << 20 | 0o777), "drwxrwxrwt");
        assert_eq!(mode(1 << 26 | 1 << 21 | 0o620), "crw--w----");
        assert_eq!(mode(1 << 23 | 0o4755 & 0o777), "-rwsr-xr-x");
        assert_eq!(mode(1 << 22 | 0o644), "-rw-r-Sr--");
        assert_eq!(mode(1 << 27 | 0o777), "lrwxrwxrwx");
    }
}
