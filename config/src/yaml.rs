//! YAML as a tree in which every node knows its position.
//!
//! The tree is built from the parser's events rather than by serde, for three reasons: a document's kind decides its shape, a text field
//! must see `1.10` as written and not as a float, and one pass should find all problems and not only the first. YAML features that a config
//! does not need are refused (tags, merge keys, keys that are not text).
//!
//! Input is hostile until proven otherwise: bytes, nodes, text after aliases and depth are limited.

use std::collections::{BTreeMap, HashSet};

use serde_saphyr::granit_parser::{Event, Marker, Parser, ScalarStyle, Span, options};

use super::problem::{ConfigErrors, Position, Problem};

/// Limit on nodes in all documents together, aliases expanded. The largest generated config has about 300.
const MAX_NODES: usize = 50_000;
/// Limit on text in all scalars together, aliases expanded, in bytes: twice the size limit of a config.
const MAX_TEXT_BYTES: usize = 2 * super::MAX_CONFIG_BYTES;
/// Limit on documents. Large clusters' configs have about 50; the references between them are compared with each other.
const MAX_DOCUMENTS: usize = 1000;
/// Limit on the depth of lists and maps. The deepest known field is at 9, Kubernetes' own settings below reach 20.
const MAX_DEPTH: usize = 64;

/// One document of the file.
#[derive(Debug)]
pub(super) struct Document {
    /// Its number in the file, from 1, empty documents counted.
    pub(super) number: usize,
    pub(super) root: Node,
}

#[derive(Debug, Clone)]
pub(super) struct Node {
    pub(super) at: Position,
    pub(super) value: Value,
}

#[derive(Debug, Clone)]
pub(super) enum Value {
    /// Empty, `~` or `null`: the same as if the key were absent.
    Null,
    Scalar {
        text: String,
        /// Whether it is written without quotes: `true`, not `"true"`.
        plain: bool,
    },
    List(Vec<Node>),
    Map(Vec<Entry>),
}

#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub(super) key: String,
    /// The position of the key.
    pub(super) at: Position,
    pub(super) node: Node,
}

impl Node {
    /// The value of a key of this map; `None` for `null`, and if this is not a map.
    pub(super) fn get(&self, key: &str) -> Option<&Node> {
        self.entries()
            .find(|entry| entry.key == key)
            .map(|entry| &entry.node)
    }

    /// The keys of this map that have a value, in the order written.
    pub(super) fn entries(&self) -> impl Iterator<Item = &Entry> {
        let entries: &[Entry] = match &self.value {
            Value::Map(entries) => entries,
            _ => &[],
        };
        entries
            .iter()
            .filter(|entry| !matches!(entry.node.value, Value::Null))
    }

    /// The items of this list.
    pub(super) fn items(&self) -> &[Node] {
        match &self.value {
            Value::List(items) => items,
            _ => &[],
        }
    }

    /// The text of this scalar.
    pub(super) fn text(&self) -> Option<&str> {
        match &self.value {
            Value::Scalar { text, .. } => Some(text),
            _ => None,
        }
    }

    /// Whether the node sets something. Go writes empty text, lists and maps for "not set".
    pub(super) fn is_set(&self) -> bool {
        match &self.value {
            Value::Null => false,
            Value::Scalar { text, .. } => !text.is_empty(),
            Value::List(items) => !items.is_empty(),
            Value::Map(_) => self.entries().next().is_some(),
        }
    }

    /// The type of the node, for messages.
    pub(super) fn describe(&self) -> &'static str {
        match &self.value {
            Value::Null => "nothing",
            Value::Scalar { .. } => "a single value",
            Value::List(_) => "a list",
            Value::Map(_) => "a map",
        }
    }
}

/// Splits a file into its documents; empty ones are left out.
///
/// # Errors
/// The file is too long, not UTF-8, not well-formed YAML, or uses a feature that a config may not use. The parser cannot go on after an
/// error, so it is the only one.
pub(super) fn documents(bytes: &[u8], max_bytes: usize) -> Result<Vec<Document>, ConfigErrors> {
    if bytes.len() > max_bytes {
        return Err(problem(
            None,
            format!(
                "the config has {} bytes, and at most {max_bytes} are read",
                bytes.len()
            ),
        ));
    }
    let text = std::str::from_utf8(bytes).map_err(|error| not_utf8(bytes, error.valid_up_to()))?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut parser = Parser::new_from_str_with_options(
        text,
        options! {
            emit_comments: false,
            disallow_directives: true,
            flow_nesting_limit: MAX_DEPTH,
            block_nesting_limit: MAX_DEPTH,
        },
    );
    let mut builder = Builder::default();
    for event in &mut parser {
        let (event, span) = event.map_err(|error| {
            problem(
                Some(position(error.marker())),
                format!("this is not well-formed YAML: {}", error.info()),
            )
        })?;
        builder.take(event, &span)?;
    }
    Ok(builder.documents)
}

/// Builds trees from events. With a stack instead of recursion, so that the depth can be limited.
#[derive(Default)]
struct Builder {
    documents: Vec<Document>,
    number: usize,
    open: Vec<Open>,
    anchors: BTreeMap<usize, Node>,
    nodes: usize,
    text_bytes: usize,
}

/// A list or map that is not closed yet.
struct Open {
    at: Position,
    anchor: usize,
    content: Content,
}

enum Content {
    List(Vec<Node>),
    Map {
        entries: Vec<Entry>,
        /// The keys so far: a map of 50,000 must not cost a billion comparisons.
        seen: HashSet<String>,
        /// The key of the next value.
        key: Option<(String, Position)>,
    },
}

impl Builder {
    fn take(&mut self, event: Event<'_>, span: &Span) -> Result<(), ConfigErrors> {
        let at = position(&span.start);
        match event {
            Event::DocumentStart(..) => {
                self.number += 1;
                if self.number > MAX_DOCUMENTS {
                    return Err(problem(
                        Some(at),
                        format!("the config has more than {MAX_DOCUMENTS} documents"),
                    ));
                }
                self.anchors.clear();
            }
            Event::Scalar(text, style, anchor, tag) => {
                refuse_tag(tag.is_some(), at)?;
                let plain = style == ScalarStyle::Plain;
                let null = plain && matches!(&*text, "" | "~" | "null" | "Null" | "NULL");
                let value = if null {
                    Value::Null
                } else {
                    Value::Scalar {
                        text: text.into_owned(),
                        plain,
                    }
                };
                self.add(Node { at, value }, anchor)?;
            }
            Event::SequenceStart(_, anchor, tag) => {
                refuse_tag(tag.is_some(), at)?;
                self.open(at, anchor, Content::List(Vec::new()))?;
            }
            Event::MappingStart(_, anchor, tag) => {
                refuse_tag(tag.is_some(), at)?;
                self.open(
                    at,
                    anchor,
                    Content::Map {
                        entries: Vec::new(),
                        seen: HashSet::new(),
                        key: None,
                    },
                )?;
            }
            Event::SequenceEnd | Event::MappingEnd => {
                if let Some(open) = self.open.pop() {
                    let value = match open.content {
                        Content::List(items) => Value::List(items),
                        Content::Map { entries, .. } => Value::Map(entries),
                    };
                    self.add(Node { at: open.at, value }, open.anchor)?;
                }
            }
            Event::Alias(id) => {
                // An alias within its own anchor is not found: the node is not complete yet.
                let Some(node) = self.anchors.get(&id).cloned() else {
                    return Err(problem(
                        Some(at),
                        "this alias refers to a node that contains it",
                    ));
                };
                self.count_tree(&node, at)?;
                self.place(Node { at, ..node })?;
            }
            _ => {}
        }
        Ok(())
    }

    fn open(&mut self, at: Position, anchor: usize, content: Content) -> Result<(), ConfigErrors> {
        if self.open.len() >= MAX_DEPTH {
            return Err(problem(
                Some(at),
                format!("lists and maps are nested deeper than {MAX_DEPTH} levels"),
            ));
        }
        self.open.push(Open {
            at,
            anchor,
            content,
        });
        Ok(())
    }

    /// Adds a node that is written in the file, not copied by an alias.
    fn add(&mut self, node: Node, anchor: usize) -> Result<(), ConfigErrors> {
        self.count(&node, node.at)?;
        if anchor != 0 {
            // The copy for later aliases counts too: otherwise nested anchors would take memory without limit.
            self.count_tree(&node, node.at)?;
            self.anchors.insert(anchor, node.clone());
        }
        self.place(node)
    }

    fn count_tree(&mut self, node: &Node, at: Position) -> Result<(), ConfigErrors> {
        self.count(node, at)?;
        match &node.value {
            Value::List(items) => items.iter().try_for_each(|item| self.count_tree(item, at)),
            Value::Map(entries) => entries
                .iter()
                .try_for_each(|entry| self.count_tree(&entry.node, at)),
            Value::Null | Value::Scalar { .. } => Ok(()),
        }
    }

    fn count(&mut self, node: &Node, at: Position) -> Result<(), ConfigErrors> {
        self.nodes += 1;
        self.text_bytes += match &node.value {
            Value::Scalar { text, .. } => text.len(),
            // Keys were counted as scalars where they are written, and are copied with an alias.
            Value::Map(entries) => entries.iter().map(|entry| entry.key.len()).sum(),
            Value::Null | Value::List(_) => 0,
        };
        if self.nodes > MAX_NODES || self.text_bytes > MAX_TEXT_BYTES {
            return Err(problem(
                Some(at),
                format!(
                    "the config is too large: more than {MAX_NODES} values or {MAX_TEXT_BYTES} bytes of text once aliases are expanded"
                ),
            ));
        }
        Ok(())
    }

    /// Puts a complete node into the innermost open list or map; without one it is the root of the document.
    fn place(&mut self, node: Node) -> Result<(), ConfigErrors> {
        match self.open.last_mut().map(|open| &mut open.content) {
            None => {
                if !matches!(node.value, Value::Null) {
                    self.documents.push(Document {
                        number: self.number,
                        root: node,
                    });
                }
            }
            Some(Content::List(items)) => items.push(node),
            Some(Content::Map { entries, seen, key }) => match key.take() {
                Some((name, at)) => entries.push(Entry {
                    key: name,
                    at,
                    node,
                }),
                None => {
                    let name = match node.value {
                        Value::Scalar { text, .. } => text,
                        _ => return Err(problem(Some(node.at), "a key must be text")),
                    };
                    if name == "<<" {
                        return Err(problem(
                            Some(node.at),
                            "merge keys (`<<`) are not used in a machine config; write the fields out",
                        ));
                    }
                    if !seen.insert(name.clone()) {
                        return Err(problem(
                            Some(node.at),
                            format!("the key `{name}` is given twice in the same map"),
                        ));
                    }
                    *key = Some((name, node.at));
                }
            },
        }
        Ok(())
    }
}

fn refuse_tag(tagged: bool, at: Position) -> Result<(), ConfigErrors> {
    if tagged {
        return Err(problem(
            Some(at),
            "tags (`!name`) are not used in a machine config",
        ));
    }
    Ok(())
}

fn position(marker: &Marker) -> Position {
    Position {
        line: marker.line().max(1),
        column: marker.col() + 1,
    }
}

fn problem(at: Option<Position>, message: impl Into<String>) -> ConfigErrors {
    ConfigErrors::one(Problem {
        at,
        document: None,
        path: String::new(),
        message: message.into(),
    })
}

fn not_utf8(bytes: &[u8], valid: usize) -> ConfigErrors {
    let before = String::from_utf8_lossy(bytes.get(..valid).unwrap_or(bytes));
    let line = before.matches('\n').count() + 1;
    let column = before
        .rsplit('\n')
        .next()
        .map_or(0, |last| last.chars().count())
        + 1;
    problem(
        Some(Position { line, column }),
        "the config is not UTF-8 text",
    )
}
