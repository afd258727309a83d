"""What the documentation is built with: public names, their pages, tables made from schemas, links into other sites."""
