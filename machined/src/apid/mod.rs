//! apid
