//! NBD metadata contexts: kinds of facts about a range that a client may query. The server offers
//! one context, `base:allocation`: whether a range is stored, and whether it reads as zeroes.
//!
//! The namespace does not tell the server which ranges are stored. So the server reports every
//! range as data, which is always allowed. It offers the context because some clients require it.

use super::wire::{MAX_STRING_BYTES, Reader};

/// The context's name.
pub(super) const ALLOCATION: &[u8] = b"base:allocation";
/// The context's number in answers.
pub(super) const ALLOCATION_ID: u32 = 0;
/// The state that the server reports: stored data, with neither `NBD_STATE_HOLE` nor
/// `NBD_STATE_ZERO`.
pub(super) const DATA: u32 = 0;

/// A client's query for contexts.
pub(super) struct Question<'a> {
    pub(super) export: &'a [u8],
    queries: Vec<&'a [u8]>,
}

impl<'a> Question<'a> {
    /// Parses the data of `NBD_OPT_LIST_META_CONTEXT` and `NBD_OPT_SET_META_CONTEXT`.
    pub(super) fn parse(data: &'a [u8]) -> Option<Question<'a>> {
        let mut reader = Reader(data);
        let export = text(&mut reader)?;
        let count = reader.u32()?;
        let mut queries = Vec::new();
        for _ in 0..count {
            queries.push(text(&mut reader)?);
        }
        reader.0.is_empty().then_some(Question { export, queries })
    }

    /// True if the list includes `base:allocation`. A list without queries requests all contexts;
    /// the query `base:` requests the contexts whose names start with it.
    pub(super) fn lists_allocation(&self) -> bool {
        let listed = |query: &&[u8]| **query == *b"base:" || **query == *ALLOCATION;
        self.queries.is_empty() || self.queries.iter().any(listed)
    }

    /// True if the client selects `base:allocation`, by its whole name.
    pub(super) fn chooses_allocation(&self) -> bool {
        self.queries.contains(&ALLOCATION)
    }
}

fn text<'a>(reader: &mut Reader<'a>) -> Option<&'a [u8]> {
    let length = reader.u32()? as usize;
    reader.bytes(length).filter(|text| text.len() <= MAX_STRING_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(queries: &[&[u8]]) -> Vec<u8> {
        let mut data = b"\0\0\0\x04disk".to_vec();
        data.extend((queries.len() as u32).to_be_bytes());
        for query in queries {
            data.extend((query.len() as u32).to_be_bytes());
            data.extend(*query);
        }
        data
    }

    #[test]
    fn metadata_context_queries_are_parsed() {
        for (queries, lists, chooses) in [
            (&[][..], true, false),
            (&[&b"base:"[..]], true, false),
            (&[b"base:allocation"], true, true),
            (&[b"qemu:dirty-bitmap:x", b"base:allocation"], true, true),
            (&[b"base"], false, false),
            (&[b"base:other"], false, false),
        ] {
            let data = data(queries);
            let question = Question::parse(&data).expect("a valid question");
            assert_eq!(question.export, b"disk");
            assert_eq!(question.lists_allocation(), lists, "{queries:?}");
            assert_eq!(question.chooses_allocation(), chooses, "{queries:?}");
            for end in 0..data.len() {
                assert!(
                    Question::parse(&data[..end]).is_none(),
                    "the first {end} bytes of the query {queries:?} are refused"
                );
            }
        }
        assert!(Question::parse(b"\0\0\0\0\xff\xff\xff\xff").is_none());
        assert!(Question::parse(b"\0\0\0\0\0\0\0\0more").is_none());
    }
}
