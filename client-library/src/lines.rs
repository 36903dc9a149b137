//! Splits a byte stream into lines; its pieces may end anywhere.

/// Collects pieces and returns whole lines.
#[derive(Debug, Default)]
pub struct Lines {
    rest: Vec<u8>,
}

impl Lines {
    /// The lines that this piece completes, without their newlines.
    pub fn push(&mut self, piece: &[u8]) -> Vec<String> {
        self.rest.extend_from_slice(piece);
        let Some(end) = self.rest.iter().rposition(|byte| *byte == b'\n') else {
            return Vec::new();
        };
        let whole: Vec<u8> = self.rest.drain(..=end).collect();
        whole[..end]
            .split(|byte| *byte == b'\n')
            .map(text)
            .collect()
    }

    /// The rest at the end of the stream: a last line without a newline.
    pub fn finish(self) -> Option<String> {
        (!self.rest.is_empty()).then(|| text(&self.rest))
    }
}

fn text(line: &[u8]) -> String {
    String::from_utf8_lossy(line).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_end_anywhere() {
        let mut lines = Lines::default();
        assert!(lines.push(b"on").is_empty());
        assert_eq!(lines.push(b"e\n\ntwo\nthr"), ["one", "", "two"]);
        // A character that is split over two pieces stays whole.
        assert!(lines.push(b"ee \xc3").is_empty());
        assert_eq!(lines.push(b"\xa4\nlast"), ["three ä"]);
        assert_eq!(lines.finish().as_deref(), Some("last"));
        assert_eq!(Lines::default().finish(), None);
    }
}
