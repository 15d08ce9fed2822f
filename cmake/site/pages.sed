# Links to sources and folders become plain text: the site has only pages, pictures and headers. Doxygen names
# headings otherwise: a link to one of another page goes to the page, and one to the own page becomes plain text.
s/\]\(([^):#]*[.]md)(#[^)]*)?\)/](KEEP\1)/g
s/(^|[^!])\[([^]]+)\]\([^K:)][^:)]*\)/\1\2/g
s/\]\(KEEP/](/g
