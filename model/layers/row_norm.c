// SPDX-License-Identifier: Apache-2.0
#include "model/layers/row_norm.h"

choir_status_t choir__row_norm_add_param(choir_layer_t* layer, const char* name,
                                         choir_vars_t inputs, double value) {
  const choir_view_t* x = choir_var_view(inputs.at[0]);
  if (x->ndim < 1)
    return CHOIR_ERROR(INVALID_ARGUMENT,
                       "%s (%s): the input has no dimension; 1 or more are "
                       "needed",
                       layer->name, layer->def->name);
  choir_view_t row;
  CHOIR_TRY(choir_view_make(x->dtype, 1, &x->shape[x->ndim - 1], &row));
  const choir_initializer_t constant = {.kind = CHOIR_INITIALIZER_CONSTANT,
                                        .a = value};
  return choir__layer_add_param(layer, name, &row, &constant, true);
}

choir_var_t* choir__row_norm_mean(choir_scope_t* scope, choir_var_t* x) {
  const choir_view_t* view = choir_var_view(x);
  if (!view) return x;  // something failed before
  const choir_mean_attrs_t rows = {.axis = view->ndim - 1, .keep_dims = true};
  return choir_var_mean(scope, x, &rows);
}

choir_var_t* choir__row_norm_scale(choir_scope_t* scope, choir_var_t* x,
                                   double epsilon) {
  const choir_scale_attrs_t above_zero = {.factor = 1, .shift = epsilon};
  choir_var_t* square = choir__row_norm_mean(scope, choir_var_square(scope, x));
  choir_var_t* root =
      choir_var_sqrt(scope, choir_var_scale(scope, square, &above_zero));
  return choir_var_div(scope, x, root);
}
