//! The settings of forwarded logs and of metrics.

use std::net::SocketAddr;
use std::str::FromStr;

use super::{
    super::{
        model::{LogContent, LogDestination, Metrics, MetricsReaders},
        section::Section,
    },
    Documents,
};

/// Limit on receivers of logs: each has a queue.
const MOST_DESTINATIONS: usize = 8;
/// Fields of each line, which a tag must not hide.
const FIELDS: [&str; 4] = ["msg", "talos-level", "talos-service", "talos-time"];

pub(super) fn log_destinations(documents: &Documents<'_>) -> Vec<LogDestination> {
    let logging = documents.section("logging");
    let services = logging
        .as_ref()
        .map_or_else(Vec::new, |logging| logging.sections("destinations"));
    let services = services.into_iter().map(|(_, section)| section);
    let mut found = Vec::new();
    found.extend(
        services.filter_map(|section| destination(&section, "endpoint", LogContent::Services)),
    );
    for (kind, content) in [
        ("KmsgLogConfig", LogContent::Kernel),
        ("EventLogConfig", LogContent::Events),
    ] {
        let named = documents.of(kind);
        found.extend(named.filter_map(|section| destination(&section, "url", content)));
    }
    found
        .into_iter()
        .enumerate()
        .filter_map(|(number, (section, destination))| {
            if number == MOST_DESTINATIONS {
                section.wrong(format_args!(
                    "logs go to at most {MOST_DESTINATIONS} receivers"
                ));
            }
            (number < MOST_DESTINATIONS).then_some(destination)
        })
        .collect()
}

fn destination<'a>(
    section: &Section<'a>,
    field: &str,
    content: LogContent,
) -> Option<(Section<'a>, LogDestination)> {
    let endpoint = section.required(field)?;
    let tags = section.named_texts("extraTags").into_iter();
    let tags = tags.filter_map(|(name, value)| {
        if FIELDS.contains(&name) {
            value.wrong(format_args!("each line has a field `{name}` already"));
            return None;
        }
        Some((name.to_owned(), value.text.to_owned()))
    });
    let destination = LogDestination {
        endpoint,
        content,
        tags: tags.collect(),
    };
    Some((section.clone(), destination))
}

/// An address and a port to listen on.
struct Listen(SocketAddr);

impl FromStr for Listen {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let address = text.parse().map(Self);
        address.map_err(|_| "write ADDRESS:PORT, such as `[::]:9100`")
    }
}

pub(super) fn metrics(documents: &Documents<'_>) -> Option<Metrics> {
    let document = documents.one("MetricsConfig")?;
    let Listen(listen) = document.required("listen")?;
    Some(Metrics {
        listen,
        readers: match document.text("readers") {
            Some("anyone") => MetricsReaders::Anyone,
            _ => MetricsReaders::Certificate,
        },
    })
}
