"""What a running job needs: operators, process groups, tensor reuse."""
