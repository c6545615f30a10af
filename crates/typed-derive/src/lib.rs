//! Derives `TypedKey` of `sapwood-typed`, where its documentation is, for structs and enums.
//!
//! Invariant: the order of the bytes is that of a derived `Ord`: fields in the order of their declaration, and variants, whose tags ascend.

use proc_macro2::TokenStream;
use quote::{format_ident, quote};
use syn::{
    Data, DeriveInput, Error, Expr, ExprLit, ExprUnary, Fields, Ident, Index, Lit, LitInt, Member, Result,
    Type, UnOp, Variant,
};

/// Parts of a prefix: so many has the longest tuple that is a key.
const PARTS_MAX: usize = 8;

/// See `sapwood_typed::TypedKey`.
#[proc_macro_derive(TypedKey, attributes(key))]
pub fn derive_typed_key(input: proc_macro::TokenStream) -> proc_macro::TokenStream {
    let input = syn::parse_macro_input!(input as DeriveInput);
    derive(input).unwrap_or_else(Error::into_compile_error).into()
}

fn derive(input: DeriveInput) -> Result<TokenStream> {
    if let Some(attribute) = input.attrs.iter().find(|attribute| attribute.path().is_ident("key")) {
        return Err(Error::new_spanned(attribute, "only variants of enums have tags"));
    }
    if !input.generics.params.is_empty() {
        return Err(Error::new_spanned(
            input.generics,
            "keys with generic parameters cannot derive `TypedKey`",
        ));
    }
    match &input.data {
        Data::Struct(data) => of_struct(&input.ident, &data.fields),
        Data::Enum(data) => of_enum(&input.ident, data.variants.iter().collect::<Vec<_>>()),
        Data::Union(data) => Err(Error::new_spanned(data.union_token, "a union cannot be a key")),
    }
}

/// Fields, and what they are called.
fn members(fields: &Fields) -> Vec<(Member, &Type)> {
    let named = |(index, field): (usize, &syn::Field)| match &field.ident {
        Some(name) => Member::Named(name.clone()),
        None => Member::Unnamed(Index::from(index)),
    };
    fields.iter().enumerate().map(|(index, field)| (named((index, field)), &field.ty)).collect()
}

/// Asserts that all but the last can be followed by others; then says whether the last can.
fn prefix_free(types: &[&Type]) -> TokenStream {
    let Some((last, others)) = types.split_last() else { return quote!(true) };
    quote! {{
        #(::core::assert!(
            <#others as ::sapwood_typed::TypedKey>::IS_PREFIX_FREE,
            "`Verbatim` can only be the last part of a key",
        );)*
        <#last as ::sapwood_typed::TypedKey>::IS_PREFIX_FREE
    }}
}

/// Describes parts as a tuple.
fn describe(types: &[&Type]) -> TokenStream {
    let parts = types.iter().enumerate().map(|(index, part)| {
        let comma = (index > 0).then(|| quote!(words.push_str(", ");));
        quote!(#comma <#part as ::sapwood_typed::TypedKey>::describe_key(words);)
    });
    quote!(words.push('('); #(#parts)* words.push(')');)
}

fn of_struct(name: &Ident, fields: &Fields) -> Result<TokenStream> {
    let members = members(fields);
    if members.is_empty() {
        return Err(Error::new_spanned(name, "a key has at least one field: keys have at least one byte"));
    }
    let (fields, types): (Vec<_>, Vec<_>) = members.into_iter().unzip();
    let (is_prefix_free, describe) = (prefix_free(&types), describe(&types));
    let parts = &types[..types.len().min(PARTS_MAX)];
    Ok(quote! {
        impl ::sapwood_typed::AsKey<#name> for #name {
            fn encode_key(&self, bytes: &mut ::std::vec::Vec<u8>) {
                #(<#types as ::sapwood_typed::AsKey<#types>>::encode_key(&self.#fields, bytes);)*
            }
        }

        impl ::sapwood_typed::TypedKey for #name {
            const IS_PREFIX_FREE: bool = #is_prefix_free;

            type Parts = (#(#parts,)*);

            fn decode_key(
                bytes: &mut ::sapwood_typed::KeyReader<'_>,
            ) -> ::core::result::Result<Self, ::sapwood_typed::KeyError> {
                ::core::result::Result::Ok(Self {
                    #(#fields: <#types as ::sapwood_typed::TypedKey>::decode_key(bytes)?,)*
                })
            }

            fn describe_key(words: &mut ::std::string::String) {
                #describe
            }
        }
    })
}

/// The tags of variants: as said, or one more than the one before.
fn tags(variants: &[&Variant]) -> Result<Vec<u8>> {
    let mut tags: Vec<u8> = Vec::new();
    let mut discriminant = None;
    for variant in variants {
        discriminant = Some(discriminant_of(variant, discriminant)?);
        let mut said = None;
        for attribute in variant.attrs.iter().filter(|attribute| attribute.path().is_ident("key")) {
            attribute.parse_nested_meta(|meta| {
                if !meta.path.is_ident("tag") {
                    return Err(meta.error("expected `tag = 0` to 255"));
                }
                said = Some(meta.value()?.parse::<LitInt>()?.base10_parse::<u8>()?);
                Ok(())
            })?;
        }
        let tag = match (said, tags.last()) {
            (Some(tag), Some(before)) if tag <= *before => {
                return Err(Error::new_spanned(
                    variant,
                    "tags must ascend, so that keys are ordered as the variants are",
                ));
            }
            (Some(tag), _) => tag,
            (None, None) => 0,
            (None, Some(before)) => {
                before.checked_add(1).ok_or_else(|| Error::new_spanned(variant, "tags are 0 to 255"))?
            }
        };
        tags.push(tag);
    }
    Ok(tags)
}

/// The number of a variant, by which a derived `Ord` goes, behind one with the number `before`.
fn discriminant_of(variant: &Variant, before: Option<i128>) -> Result<i128> {
    let next = before.map_or(0, |before| before + 1);
    let Some((_, said)) = &variant.discriminant else { return Ok(next) };
    let number = match said {
        Expr::Lit(ExprLit { lit: Lit::Int(number), .. }) => number.base10_parse().ok(),
        Expr::Unary(ExprUnary { op: UnOp::Neg(_), expr, .. }) => match &**expr {
            Expr::Lit(ExprLit { lit: Lit::Int(number), .. }) => {
                number.base10_parse().ok().map(|number: i128| -number)
            }
            _ => None,
        },
        _ => None,
    };
    match (number, before) {
        (Some(number), Some(before)) if number <= before => {}
        (Some(number), _) => return Ok(number),
        (None, _) => {}
    }
    Err(Error::new_spanned(
        said,
        "numbers of variants must be literals that ascend: keys are ordered as the variants are declared, a derived `Ord` by these \
         numbers; `#[key(tag = N)]` gives a key another tag",
    ))
}

fn of_enum(name: &Ident, variants: Vec<&Variant>) -> Result<TokenStream> {
    if variants.is_empty() {
        return Err(Error::new_spanned(name, "a key has at least one variant"));
    }
    let tags = tags(&variants)?;
    let (mut encode, mut decode, mut free, mut described) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for (index, (variant, tag)) in variants.iter().zip(&tags).enumerate() {
        let (fields, types): (Vec<_>, Vec<_>) = members(&variant.fields).into_iter().unzip();
        let bindings: Vec<_> = (0..fields.len()).map(|index| format_ident!("field_{index}")).collect();
        let variant = &variant.ident;
        encode.push(quote! {
            Self::#variant { #(#fields: #bindings,)* } => {
                bytes.push(#tag);
                #(<#types as ::sapwood_typed::AsKey<#types>>::encode_key(#bindings, bytes);)*
            }
        });
        decode.push(quote! {
            [#tag] => Self::#variant {
                #(#fields: <#types as ::sapwood_typed::TypedKey>::decode_key(bytes)?,)*
            },
        });
        free.push(prefix_free(&types));
        let (begin, describe) = (
            format!("{}{tag}", if index == 0 { "enum " } else { " | " }),
            (!types.is_empty()).then(|| describe(&types)),
        );
        described.push(quote!(words.push_str(#begin); #describe));
    }
    Ok(quote! {
        impl ::sapwood_typed::AsKey<#name> for #name {
            fn encode_key(&self, bytes: &mut ::std::vec::Vec<u8>) {
                match self { #(#encode)* }
            }
        }

        impl ::sapwood_typed::TypedKey for #name {
            // All are asked, so that each is checked.
            const IS_PREFIX_FREE: bool = true #(& #free)*;

            type Parts = Self;

            fn decode_key(
                bytes: &mut ::sapwood_typed::KeyReader<'_>,
            ) -> ::core::result::Result<Self, ::sapwood_typed::KeyError> {
                ::core::result::Result::Ok(match bytes.take::<1>()? {
                    #(#decode)*
                    _ => {
                        return ::core::result::Result::Err(::sapwood_typed::KeyError::Invalid {
                            what: "no variant has this tag",
                        });
                    }
                })
            }

            fn describe_key(words: &mut ::std::string::String) {
                #(#described)*
            }
        }
    })
}
