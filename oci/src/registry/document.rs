//! Small documents of a registry: got whole, with a limit on their size, and compared with their descriptors.

use http::header::{CONTENT_TYPE, LINK};
use tokio::time::Instant;

use instar_values::Digest;
use instar_values::ImageReference;

use super::RegistryClient;
use super::error::RequestError;
use crate::registries::Endpoint;

/// Limit on the length of the query for the next page of a list.
const LONGEST_QUERY: usize = 1024;

/// A request for a small document.
#[derive(Clone, Copy)]
pub(crate) struct DocumentRequest<'a> {
    pub(crate) endpoint: &'a Endpoint,
    /// The image: its repository has the document.
    pub(crate) reference: &'a ImageReference,
    /// The place in the repository, for example `blobs/DIGEST`.
    pub(crate) place: &'a str,
    pub(crate) accept: &'static str,
    /// Size limit, in bytes.
    pub(crate) limit: u64,
}

/// A small response, read to its end.
pub(crate) struct Document {
    pub(super) content_type: Option<String>,
    /// The query for the next page, if it is a list with further ones.
    pub(crate) next_page: Option<String>,
    pub(crate) bytes: Vec<u8>,
}

impl Document {
    /// Checks the document against its descriptor, and returns its digest.
    pub(crate) fn check(
        &self,
        what: &'static str,
        digest: Option<Digest>,
        size: Option<u64>,
    ) -> Result<Digest, RequestError> {
        let actual = self.bytes.len() as u64;
        if let Some(expected) = size.filter(|&size| size != actual) {
            return Err(RequestError::Size {
                what,
                expected,
                actual,
            });
        }
        let actual = Digest::of(&self.bytes);
        match digest {
            Some(expected) if expected != actual => Err(RequestError::Digest {
                what,
                expected,
                actual,
            }),
            _ => Ok(actual),
        }
    }
}

impl RegistryClient {
    /// Gets a small document, with retries while they may help.
    pub(crate) async fn document(
        &self,
        request: DocumentRequest<'_>,
    ) -> Result<Document, RequestError> {
        let (endpoint, began) = (request.endpoint, Instant::now());
        let mut failed = 0;
        loop {
            let error = match self.document_once(request).await {
                Ok(document) => return Ok(document),
                Err(error) => error,
            };
            failed += 1;
            match self.delay(endpoint, failed, began.elapsed()) {
                Some(delay) if error.is_transient() => tokio::time::sleep(delay).await,
                _ => return Err(self.noted(endpoint, error)),
            }
        }
    }

    async fn document_once(&self, request: DocumentRequest<'_>) -> Result<Document, RequestError> {
        let DocumentRequest {
            endpoint,
            reference,
            place,
            accept,
            limit,
        } = request;
        let path = format!("{}/{place}", reference.repository());
        let mut answer = self.get(endpoint, reference, &path, accept, 0).await?;
        let content_type = answer.headers.get(CONTENT_TYPE);
        let link = answer.headers.get(LINK);
        Ok(Document {
            content_type: content_type
                .map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned()),
            next_page: link.and_then(|link| next_query(link.to_str().ok()?)),
            bytes: answer.document(limit as usize).await?,
        })
    }
}

/// The query for the next page of a list, by the answer's `Link` (RFC 8288). Of the address only the query counts: all pages of a list are at one
/// place, and no registry sends us to another one.
fn next_query(link: &str) -> Option<String> {
    let (address, parameters) = link.trim().strip_prefix('<')?.split_once('>')?;
    let is_next = |parameter: &str| matches!(parameter.trim(), "rel=\"next\"" | "rel=next");
    if !parameters.split(';').any(is_next) {
        return None;
    }
    let (_, query) = address.split_once('?')?;
    // A mirror gets this part with every request.
    let pairs = query.split('&').filter(|pair| !pair.starts_with("ns="));
    let query = pairs.collect::<Vec<_>>().join("&");
    (1..=LONGEST_QUERY).contains(&query.len()).then_some(query)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_page_of_a_list_is_told_by_its_query_alone() {
        let long = format!(
            "</v2/a/referrers/x?last={}>; rel=\"next\"",
            "x".repeat(2000)
        );
        for (link, expected) in [
            (
                "</v2/a/referrers/x?n=2&last=b>; rel=\"next\"",
                Some("n=2&last=b"),
            ),
            (
                "<https://elsewhere/y?last=b&ns=r.io>; rel=next",
                Some("last=b"),
            ),
            ("</v2/a?last=b>; title=x; rel=\"next\"", Some("last=b")),
            ("</v2/a?last=b>; rel=\"prev\"", None),
            ("</v2/a?ns=r.io>; rel=\"next\"", None),
            ("</v2/a>; rel=\"next\"", None),
            ("/v2/a?last=b", None),
            (&long, None),
        ] {
            assert_eq!(next_query(link).as_deref(), expected, "{link}");
        }
    }
}
