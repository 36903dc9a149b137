#![allow(clippy::unwrap_used)]
use std::io::ErrorKind;

use super::*;

const AUTHORITY: &str = "r:5000";

fn connect(kind: ErrorKind) -> RequestError {
    RequestError::Http(HttpError::Connect {
        authority: AUTHORITY.to_owned(),
        source: kind.into(),
    })
}

fn handshake(kind: ErrorKind) -> RequestError {
    RequestError::Http(HttpError::Handshake {
        authority: AUTHORITY.to_owned(),
        source: kind.into(),
    })
}

fn nameless() -> RequestError {
    RequestError::Http(HttpError::Resolve {
        host: "r".into(),
        source: ErrorKind::Other.into(),
    })
}

fn silence() -> HttpError {
    HttpError::Silent {
        authority: AUTHORITY.to_owned(),
    }
}

fn silent() -> RequestError {
    RequestError::Http(silence())
}

fn broken_off() -> RequestError {
    RequestError::Interrupted {
        at: 7,
        source: silence(),
    }
}

fn elsewhere() -> RequestError {
    RequestError::Http(HttpError::Redirection {
        authority: AUTHORITY.to_owned(),
        location: "x".into(),
    })
}

fn status(code: u16) -> RequestError {
    RequestError::Status {
        status: StatusCode::from_u16(code).unwrap(),
        said: Said::default(),
    }
}

fn absent() -> RequestError {
    RequestError::NotFound {
        said: Said::default(),
    }
}

fn denied() -> RequestError {
    RequestError::Denied {
        said: Said::default(),
    }
}

fn digest() -> RequestError {
    RequestError::Digest {
        what: "a manifest",
        expected: Digest::of(b"a"),
        actual: Digest::of(b"b"),
    }
}

#[test]
fn unreachable_is_told_from_every_answer() {
    let cases = [
        (vec![], false),
        (vec![nameless()], true),
        (vec![connect(ErrorKind::ConnectionRefused)], true),
        (vec![connect(ErrorKind::NetworkUnreachable)], true),
        (vec![connect(ErrorKind::TimedOut)], true),
        (vec![handshake(ErrorKind::TimedOut)], true),
        (vec![handshake(ErrorKind::InvalidData)], false),
        (vec![silent()], true),
        (vec![broken_off()], true),
        (vec![elsewhere()], false),
        (vec![status(500)], true),
        (vec![status(503)], true),
        (vec![status(429)], true),
        (vec![status(400)], false),
        (vec![absent()], false),
        (vec![denied()], false),
        (vec![RequestError::Late], true),
        (vec![RequestError::Hesitates], true),
        (vec![digest()], false),
        (vec![RequestError::Token], false),
        (vec![absent(), silent()], true),
        (vec![silent(), denied()], false),
        (vec![digest(), silent()], false),
    ];
    for (errors, expected) in cases {
        let tried = errors.into_iter();
        let tried = tried.map(|error| (AUTHORITY.to_owned(), error));
        let error = RegistryError {
            reference: "r:5000/a:v1".parse().unwrap(),
            tried: Tried(tried.collect()),
        };
        assert_eq!(error.is_unreachable(), expected, "{}", error.tried);
    }
}
