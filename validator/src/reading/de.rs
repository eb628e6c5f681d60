//! The cursor as a deserializer that takes one form of each type only: an
//! object for a struct, with every field in its place that its type does not
//! leave out; a string for a variant without content; exactly as many elements
//! as a tuple has.

use std::borrow::Cow;

use serde::de::value::{BorrowedStrDeserializer, StringDeserializer};
use serde::de::{DeserializeSeed, Deserializer, EnumAccess, MapAccess, SeqAccess, VariantAccess, Visitor};
use serde::forward_to_deserialize_any;

use super::Absence;
use super::cursor::{Cursor, Refused};
use crate::canonical::Number;

/// In the place of a struct's name, for the content of a variant.
const NO_NAME: &str = "";

/// Depth of an entry's body, whose determined half is located.
const BODY_DEPTH: u32 = 2;

impl<'de> Cursor<'de, '_> {
    fn visit_number<V: Visitor<'de>>(&mut self, visitor: V) -> Result<V::Value, Refused> {
        match self.number()? {
            Number::Float(value) => visitor.visit_f64(value),
            Number::Integer(value) => match u64::try_from(value) {
                Ok(value) => visitor.visit_u64(value),
                Err(_) => visitor.visit_i64(value),
            },
        }
    }

    fn visit_string<V: Visitor<'de>>(&mut self, visitor: V) -> Result<V::Value, Refused> {
        match self.string()? {
            Cow::Borrowed(text) => visitor.visit_borrowed_str(text),
            Cow::Owned(text) => visitor.visit_string(text),
        }
    }

    fn visit_array<V: Visitor<'de>>(&mut self, visitor: V) -> Result<V::Value, Refused> {
        self.open(b'[')?;
        let value = visitor.visit_seq(Elements { cursor: self, is_first: true })?;
        // What the visitor did not ask for stands in the way.
        self.close(b']')?;
        Ok(value)
    }

    fn visit_object<V: Visitor<'de>>(&mut self, visitor: V) -> Result<V::Value, Refused> {
        self.open(b'{')?;
        let value = visitor.visit_map(Members { cursor: self, previous: None })?;
        self.close(b'}')?;
        Ok(value)
    }
}

impl<'de> Deserializer<'de> for &mut Cursor<'de, '_> {
    type Error = Refused;

    /// A type that asks what there is may take several forms. One that takes a
    /// float takes it in one form.
    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        match self.peek().ok_or(Refused)? {
            b'-' | b'0'..=b'9' => match self.number()? {
                Number::Float(value) => visitor.visit_f64(value),
                Number::Integer(value) => {
                    self.is_form_unseen = true;
                    match u64::try_from(value) {
                        Ok(value) => visitor.visit_u64(value),
                        Err(_) => visitor.visit_i64(value),
                    }
                }
            },
            first => {
                self.is_form_unseen = true;
                match first {
                    b'"' => self.visit_string(visitor),
                    b'[' => self.visit_array(visitor),
                    b'{' => self.visit_object(visitor),
                    b'n' => self.deserialize_unit(visitor),
                    _ => self.deserialize_bool(visitor),
                }
            }
        }
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        if self.expect(b"true").is_ok() {
            return visitor.visit_bool(true);
        }
        self.expect(b"false")?;
        visitor.visit_bool(false)
    }

    fn deserialize_i8<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        self.visit_number(visitor)
    }

    fn deserialize_i16<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        self.visit_number(visitor)
    }

    fn deserialize_i32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        self.visit_number(visitor)
    }

    fn deserialize_i64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        self.visit_number(visitor)
    }

    fn deserialize_u8<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        self.visit_number(visitor)
    }

    fn deserialize_u16<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        self.visit_number(visitor)
    }

    fn deserialize_u32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        self.visit_number(visitor)
    }

    fn deserialize_u64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        self.visit_number(visitor)
    }

    /// An integer is read as a float too.
    fn deserialize_f32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        self.is_form_unseen = true;
        self.visit_number(visitor)
    }

    fn deserialize_f64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        self.is_form_unseen = true;
        self.visit_number(visitor)
    }

    fn deserialize_char<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        self.visit_string(visitor)
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        self.visit_string(visitor)
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        self.visit_string(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        if self.peek() == Some(b'n') {
            self.expect(b"null")?;
            return visitor.visit_none();
        }
        visitor.visit_some(self)
    }

    fn deserialize_unit<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        self.expect(b"null")?;
        visitor.visit_unit()
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Refused> {
        self.deserialize_unit(visitor)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Refused> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        self.visit_array(visitor)
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, _: usize, visitor: V) -> Result<V::Value, Refused> {
        self.visit_array(visitor)
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: usize,
        visitor: V,
    ) -> Result<V::Value, Refused> {
        self.visit_array(visitor)
    }

    /// The order of a map's keys when it is written is that of their type, which
    /// need not be that of their bytes.
    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        self.is_form_unseen = true;
        self.visit_object(visitor)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Refused> {
        if !self.memory.is_canonical_order(fields) {
            return Err(Refused);
        }
        self.open(b'{')?;
        // Visitors of the variants of one enum may have one name.
        let of = (name != NO_NAME).then(std::any::type_name::<V>);
        let mut access = Fields { cursor: &mut *self, of, fields, next: 0, is_first: true, det_start: None };
        let value = visitor.visit_map(&mut access)?;
        // A visitor that did not ask for every field left some unread.
        if access.next != fields.len() {
            return Err(Refused);
        }
        self.close(b'}')?;
        Ok(value)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Refused> {
        if self.peek() == Some(b'"') {
            return match self.string()? {
                Cow::Borrowed(name) => visitor.visit_enum(BorrowedStrDeserializer::new(name)),
                // No variant's name needs an escape.
                Cow::Owned(_) => Err(Refused),
            };
        }
        self.open(b'{')?;
        let value = visitor.visit_enum(Content { cursor: &mut *self })?;
        self.close(b'}')?;
        Ok(value)
    }

    // Bytes are written as a list and read also from a string, and what is
    // ignored has no form at all. Identifiers come from the accesses below.
    fn deserialize_bytes<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Refused> {
        Err(Refused)
    }

    fn deserialize_byte_buf<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Refused> {
        Err(Refused)
    }

    fn deserialize_identifier<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Refused> {
        Err(Refused)
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Refused> {
        Err(Refused)
    }
}

/// Elements of an array.
struct Elements<'a, 'de, 'm> {
    cursor: &'a mut Cursor<'de, 'm>,
    is_first: bool,
}

impl<'de> SeqAccess<'de> for Elements<'_, 'de, '_> {
    type Error = Refused;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Refused> {
        if self.cursor.peek() == Some(b']') {
            return Ok(None);
        }
        if !self.is_first {
            self.cursor.expect_byte(b',')?;
        }
        self.is_first = false;
        seed.deserialize(&mut *self.cursor).map(Some)
    }
}

/// Members of a struct: its fields in the order of declaration, and all of them
/// but those that are left out.
struct Fields<'a, 'de, 'm> {
    cursor: &'a mut Cursor<'de, 'm>,
    /// The visitor's type, where it is that of one struct only.
    of: Option<&'static str>,
    fields: &'static [&'static str],
    next: usize,
    is_first: bool,
    det_start: Option<usize>,
}

impl<'de> MapAccess<'de> for &mut Fields<'_, 'de, '_> {
    type Error = Refused;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Refused> {
        let is_over = self.cursor.peek() == Some(b'}');
        if !self.is_first && !is_over {
            self.cursor.expect_byte(b',')?;
        }
        let (index, name) = loop {
            let index = self.next;
            let Some(name) = self.fields.get(index) else {
                // A comma or the first key of something else is not of this struct.
                return if is_over { Ok(None) } else { Err(Refused) };
            };
            self.next += 1;
            if !is_over && self.cursor.expect_key(name).is_ok() {
                break (index, name);
            }
            self.cursor.pass_over(self.of.map(|of| Absence { of, index }));
        };
        self.is_first = false;
        if self.cursor.depth() == BODY_DEPTH && *name == "det" {
            self.det_start = Some(self.cursor.at());
        }
        seed.deserialize(FieldIndex(index)).map(Some)
    }

    fn next_value_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<T::Value, Refused> {
        let value = seed.deserialize(&mut *self.cursor)?;
        if let Some(start) = self.det_start.take() {
            self.cursor.det = Some(start..self.cursor.at());
        }
        Ok(value)
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.fields.len() - self.next)
    }
}

/// A field by its place among the fields, which is how a derived visitor counts
/// them too.
struct FieldIndex(usize);

impl<'de> Deserializer<'de> for FieldIndex {
    type Error = Refused;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        visitor.visit_u64(self.0 as u64)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit
        unit_struct newtype_struct seq tuple tuple_struct map struct enum identifier ignored_any
    }
}

/// Members of a map: keys as they come, in ascending order.
struct Members<'a, 'de, 'm> {
    cursor: &'a mut Cursor<'de, 'm>,
    previous: Option<Cow<'de, str>>,
}

impl<'de> MapAccess<'de> for Members<'_, 'de, '_> {
    type Error = Refused;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Refused> {
        if self.cursor.peek() == Some(b'}') {
            return Ok(None);
        }
        if self.previous.is_some() {
            self.cursor.expect_byte(b',')?;
        }
        let key = self.cursor.string()?;
        self.cursor.expect_byte(b':')?;
        let is_printable = key.bytes().all(|byte| matches!(byte, 0x20..=0x7e));
        if !is_printable || self.previous.as_ref().is_some_and(|previous| *previous >= key) {
            return Err(Refused);
        }
        let value = match &key {
            Cow::Borrowed(key) => seed.deserialize(BorrowedStrDeserializer::new(key)),
            Cow::Owned(key) => seed.deserialize(StringDeserializer::new(key.clone())),
        };
        self.previous = Some(key);
        value.map(Some)
    }

    fn next_value_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<T::Value, Refused> {
        seed.deserialize(&mut *self.cursor)
    }
}

/// A variant with content: an object with the variant's name as its one key.
struct Content<'a, 'de, 'm> {
    cursor: &'a mut Cursor<'de, 'm>,
}

impl<'de> EnumAccess<'de> for Content<'_, 'de, '_> {
    type Error = Refused;
    type Variant = Self;

    fn variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<(T::Value, Self), Refused> {
        let Cow::Borrowed(name) = self.cursor.string()? else { return Err(Refused) };
        // As of every key; the names of variants are no secret of this reader.
        if !name.bytes().all(|byte| matches!(byte, 0x20..=0x7e)) {
            return Err(Refused);
        }
        self.cursor.expect_byte(b':')?;
        let variant = seed.deserialize(BorrowedStrDeserializer::new(name))?;
        Ok((variant, self))
    }
}

impl<'de> VariantAccess<'de> for Content<'_, 'de, '_> {
    type Error = Refused;

    /// A variant without content is a string.
    fn unit_variant(self) -> Result<(), Refused> {
        Err(Refused)
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, Refused> {
        seed.deserialize(self.cursor)
    }

    fn tuple_variant<V: Visitor<'de>>(self, _: usize, visitor: V) -> Result<V::Value, Refused> {
        self.cursor.visit_array(visitor)
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Refused> {
        self.cursor.deserialize_struct(NO_NAME, fields, visitor)
    }
}
