# Links to sources and folders become plain text: the site has only pages, pictures and headers. Doxygen does not find
# headings of other pages: such a link goes to the page.
s/\]\(([^):#]*[.]md)(#[^)]*)?\)/](KEEP\1)/g
s/(^|[^!])\[([^]]+)\]\([^K#:)][^:)]*\)/\1\2/g
s/\]\(KEEP/](/g
